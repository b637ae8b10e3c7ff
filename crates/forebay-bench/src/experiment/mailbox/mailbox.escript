#!/usr/bin/env escript
%% Too much mail, as Erlang processes have it: a process whose mailbox has letters in it calls another one, and finds the
%% reply behind them.
%%
%%   mailbox.escript waiting CALLS COUNT...    a line each: COUNT NANOSECONDS, of a call with COUNT letters waiting
%%   mailbox.escript run LETTERS CALLS         NANOSECONDS NANOSECONDS: a call where the letters come one at a time, each
%%                                             when the one before it is done, and where they come as fast as they are sent
%%
%% Replies are known by a number. One known by a reference that is made just before it is waited for is found without a
%% search since Erlang/OTP R14; gen_server:call does that, protocols with numbers of their own cannot.
-mode(compile).

main(["waiting", Calls | Counts]) ->
    Service = spawn_link(fun service/0),
    lists:foreach(
      fun(Count) ->
              Waiting = list_to_integer(Count),
              Took = in_process(fun() -> waiting(Service, Waiting, list_to_integer(Calls)) end),
              io:format("~b ~b~n", [Waiting, Took])
      end, Counts);
main(["run", Letters, Calls]) ->
    [N, M] = [list_to_integer(Argument) || Argument <- [Letters, Calls]],
    Service = spawn_link(fun service/0),
    Throttled = in_process(fun() -> run(Service, N, M, true) end),
    Unthrottled = in_process(fun() -> run(Service, N, M, false) end),
    io:format("~b ~b~n", [Throttled, Unthrottled]);
main(_) ->
    io:format(standard_error, "usage: mailbox.escript waiting CALLS COUNT... | run LETTERS CALLS~n", []),
    halt(2).

%% Its result, of a process whose mailbox was empty.
in_process(Work) ->
    Asker = self(),
    Worker = spawn_link(fun() -> Asker ! {self(), Work()} end),
    receive {Worker, Result} -> Result end.

waiting(Service, Waiting, Calls) ->
    lists:foreach(fun(Number) -> self() ! {letter, Number} end, lists:seq(1, Waiting)),
    nanoseconds(fun() -> calls(Service, Calls) end) div Calls.

%% Another process writes the letters; the one that they are for makes some calls for each.
run(Service, Letters, Calls, Throttled) ->
    Handler = self(),
    Write = fun(Number) ->
                    Handler ! {letter, Number},
                    Throttled andalso receive handled -> ok end
            end,
    Took = nanoseconds(
             fun() ->
                     Writer = spawn_link(fun() -> lists:foreach(Write, lists:seq(1, Letters)) end),
                     handle(Service, Writer, Letters, Calls)
             end),
    Took div (Letters * Calls).

handle(_, _, 0, _) -> ok;
handle(Service, Writer, Letters, Calls) ->
    receive {letter, _} -> ok end,
    calls(Service, Calls),
    Writer ! handled,
    handle(Service, Writer, Letters - 1, Calls).

calls(_, 0) -> ok;
calls(Service, Calls) ->
    Service ! {call, self(), Calls},
    receive {reply, Calls} -> ok end,
    calls(Service, Calls - 1).

service() ->
    receive {call, Asker, Number} -> Asker ! {reply, Number} end,
    service().

nanoseconds(Work) ->
    Began = erlang:monotonic_time(nanosecond),
    Work(),
    erlang:monotonic_time(nanosecond) - Began.
