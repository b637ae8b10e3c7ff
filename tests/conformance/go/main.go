// Command conformance drives an AMQP 0-9-1 broker with the unmodified
// github.com/rabbitmq/amqp091-go and prints one JSON line for each thing it
// saw (see ../README.md for the interface).
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// patience bounds every wait: a broker that does not answer costs one case.
const (
	patience     = 5 * time.Second
	casePatience = 25 * time.Second
	// quiet is how long "nothing arrives" is watched.
	quiet = 120 * time.Millisecond
)

type scenario struct {
	name string
	run  func(*T)
	// slow scenarios spend their time waiting for the clock and run beside the others.
	slow bool
	// alone scenarios stop the broker and run last, when nothing else does.
	alone bool
}

// T is one running case.
type T struct {
	name  string
	uri   string
	mutex sync.Mutex
	step  int
	over  bool
	conns []*amqp.Connection
	main  *amqp.Connection
}

var (
	output   = json.NewEncoder(os.Stdout)
	outputMu sync.Mutex
	input    = bufio.NewReader(os.Stdin)
)

func emit(value any) {
	outputMu.Lock()
	defer outputMu.Unlock()
	if err := output.Encode(value); err != nil {
		panic(err)
	}
}

func init() { output.SetEscapeHTML(false) }

// saw prints one observation; want, where given, is what the pages promise.
func (t *T) saw(what string, saw any, want ...any) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.over {
		return
	}
	t.step++
	line := map[string]any{"case": t.name, "step": t.step, "what": what, "saw": saw}
	if len(want) > 0 {
		line["want"] = want[0]
	}
	emit(line)
}

func (t *T) broke(what string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.over {
		return
	}
	t.step++
	t.over = true
	emit(map[string]any{"case": t.name, "step": t.step, "saw": map[string]any{"exception": what}})
}

// n gives a name that belongs to this program and case.
func (t *T) n(name string) string { return "go." + t.name + "." + name }

func must[V any](value V, err error) V {
	if err != nil {
		panic(err)
	}
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func (t *T) dial(config amqp.Config) *amqp.Connection {
	conn := must(amqp.DialConfig(t.uri, config))
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.conns = append(t.conns, conn)
	return conn
}

// newConn opens a further connection, closed when the case ends.
func (t *T) newConn() *amqp.Connection { return t.dial(amqp.Config{Locale: "en_US"}) }

// conn is the case's own connection, opened again when an error took it.
func (t *T) conn() *amqp.Connection {
	if t.main == nil || t.main.IsClosed() {
		t.main = t.newConn()
	}
	return t.main
}

func (t *T) ch() *amqp.Channel { return must(t.conn().Channel()) }

func (t *T) confirmCh() *amqp.Channel {
	ch := t.ch()
	check(ch.Confirm(false))
	return ch
}

// tidy deletes what the case declared and left behind.
func (t *T) cleanUp(queues []string, exchanges []string) {
	ch := t.ch()
	for _, queue := range queues {
		must(ch.QueueDelete(queue, false, false, false))
	}
	for _, exchange := range exchanges {
		check(ch.ExchangeDelete(exchange, false, false))
	}
	check(ch.Close())
}

func fault(code int, text, scope string) map[string]any {
	return map[string]any{"code": code, "text": text, "scope": scope}
}

var generated = regexp.MustCompile(`amq\.(gen|ctag)-[A-Za-z0-9_-]+`)

func normal(text string) string {
	text = generated.ReplaceAllString(text, "amq.$1-<gen>")
	return regexp.MustCompile(`amq\.rabbitmq\.reply-to\.[^' ]+`).ReplaceAllString(text, "amq.rabbitmq.reply-to.<gen>")
}

func describe(err error, conn *amqp.Connection) any {
	var known *amqp.Error
	if !errors.As(err, &known) || known == nil {
		if err == nil {
			return nil
		}
		return map[string]any{"error": err.Error()}
	}
	scope := "channel"
	if conn == nil || conn.IsClosed() {
		scope = "connection"
	}
	return fault(known.Code, normal(known.Reason), scope)
}

// fails runs op on a new channel and reports the error that closes it, whether
// the call returns it or it comes later, as for a publish.
func (t *T) fails(what string, op func(*amqp.Channel) error, want ...any) {
	t.failsOn(t.conn(), what, op, want...)
}

func (t *T) failsOn(conn *amqp.Connection, what string, op func(*amqp.Channel) error, want ...any) {
	ch := must(conn.Channel())
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	err := op(ch)
	select {
	case reason := <-closed:
		if reason == nil {
			t.saw(what, fmt.Sprintf("closed without a reason: %v", err), want...)
			return
		}
		t.saw(what, describe(reason, conn), want...)
	case <-time.After(patience):
		t.saw(what, fmt.Sprintf("no error within %v, call gave %v", patience, err), want...)
	}
}

// body, next and none read deliveries.
func next(deliveries <-chan amqp.Delivery) amqp.Delivery {
	select {
	case delivery, open := <-deliveries:
		if !open {
			panic("deliveries ended")
		}
		return delivery
	case <-time.After(patience):
		panic("no delivery within " + patience.String())
	}
}

func nextOf[V any](what string, values <-chan V) V {
	select {
	case value := <-values:
		return value
	case <-time.After(patience):
		panic("no " + what + " within " + patience.String())
	}
}

func none(deliveries <-chan amqp.Delivery) bool {
	select {
	case _, open := <-deliveries:
		return !open
	case <-time.After(quiet):
		return true
	}
}

func take(deliveries <-chan amqp.Delivery, count int) []string {
	bodies := []string{}
	for left := count; left > 0; left-- {
		bodies = append(bodies, string(next(deliveries).Body))
	}
	return bodies
}

// drain gets everything that is ready in a queue.
func drain(ch *amqp.Channel, queue string) []string {
	bodies := []string{}
	for {
		message, ok := must2(ch.Get(queue, true))
		if !ok {
			return bodies
		}
		bodies = append(bodies, string(message.Body))
	}
}

func must2(message amqp.Delivery, ok bool, err error) (amqp.Delivery, bool) {
	check(err)
	return message, ok
}

func text(body string) amqp.Publishing {
	return amqp.Publishing{ContentType: "text/plain", Body: []byte(body)}
}

func publish(ch *amqp.Channel, exchange, key, body string) {
	check(ch.Publish(exchange, key, false, false, text(body)))
}

// sure publishes on a channel in confirm mode and waits for its ack.
func sure(ch *amqp.Channel, exchange, key string, message amqp.Publishing) bool {
	confirmation := must(ch.PublishWithDeferredConfirm(exchange, key, false, false, message))
	select {
	case <-confirmation.Done():
		return confirmation.Acked()
	case <-time.After(patience):
		panic("no confirm within " + patience.String())
	}
}

func eventually(what string, condition func() bool) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return
		}
	}
	panic("never happened: " + what)
}

// hook asks the orchestrator for a restart and waits until it is done.
func hook(kind string) {
	emit(map[string]any{kind: true})
	if _, err := input.ReadString('\n'); err != nil {
		panic("the orchestrator did not answer: " + err.Error())
	}
}

func run(uri string, s scenario) {
	t := &T{name: s.name, uri: uri}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if reason := recover(); reason != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n%s\n", s.name, reason, debug.Stack())
				t.broke(normal(fmt.Sprint(reason)))
			}
		}()
		s.run(t)
	}()
	limit := casePatience
	if s.alone {
		limit *= 3
	}
	select {
	case <-done:
	case <-time.After(limit):
		t.broke("case not finished within " + limit.String())
	}
	t.mutex.Lock()
	conns := t.conns
	t.mutex.Unlock()
	for _, conn := range conns {
		go conn.Close()
	}
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: conformance AMQP-URI [CASE-PATTERN]")
		os.Exit(2)
	}
	pattern := "*"
	if len(os.Args) > 2 {
		// The shell's negated class is [!…], Go's is [^…].
		pattern = strings.ReplaceAll(os.Args[2], "[!", "[^")
	}
	var chosen []scenario
	for _, list := range [][]scenario{connectionScenarios, exchangeScenarios, queueScenarios, publishScenarios, consumeScenarios, restartScenarios} {
		for _, s := range list {
			if matched, _ := path.Match(pattern, s.name); matched {
				chosen = append(chosen, s)
			}
		}
	}
	var beside sync.WaitGroup
	for _, s := range chosen {
		// Up to Go 1.21 the loop has one variable for all rounds.
		s := s
		if s.slow {
			beside.Add(1)
			go func() {
				defer beside.Done()
				run(os.Args[1], s)
			}()
		}
	}
	for _, s := range chosen {
		if !s.slow && !s.alone {
			run(os.Args[1], s)
		}
	}
	beside.Wait()
	for _, s := range chosen {
		if s.alone {
			run(os.Args[1], s)
		}
	}
}
