//! What is in a store: what recovery says, and what its runs hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_store::{
    Disk, Event, Home, Options, QueueId, Recovered, RunId, Seq, Store, StoreFailed, open, perform,
};

use super::state::State;

pub struct Contents {
    pub state: State,
    pub homes: BTreeMap<(QueueId, Seq), Home>,
}

/// Opens a store and reads all of it; the sentence for the operator if it does not let that be done.
pub fn opened(
    disk: &Arc<dyn Disk>,
    options: &Options,
) -> Result<(Store, Recovered, Contents), String> {
    disk.unlock();
    let (mut store, recovered) =
        open(disk.clone(), options.clone()).map_err(|error| error.to_string())?;
    let contents = read(&mut store, &**disk, &recovered).map_err(|failed| failed.what)?;
    Ok((store, recovered, contents))
}

/// Reads the runs of a store that was just opened; checks what holds for every recovery.
fn read(
    store: &mut Store,
    disk: &dyn Disk,
    recovered: &Recovered,
) -> Result<Contents, StoreFailed> {
    let mut contents = Contents {
        state: State { meta: recovered.meta.clone(), ..State::default() },
        homes: BTreeMap::new(),
    };
    let state = &mut contents.state;
    for queue in &recovered.queues {
        state.next_seq.insert(queue.id, queue.next_seq);
        let mut last = 0;
        for (seq, home, payload) in &queue.messages {
            assert!(*seq > last && *seq < queue.next_seq);
            last = *seq;
            state.messages.insert((queue.id, *seq), recovered.payloads[*payload].clone());
            contents.homes.insert((queue.id, *seq), *home);
        }
        let mut previous = 0;
        for run in &queue.runs {
            assert!(run.first > previous && run.last < queue.next_seq);
            let span = run.first..=run.last;
            assert!(!queue.messages.iter().any(|message| span.contains(&message.0)));
            previous = run.last;
            let messages = read_run(store, disk, run.id)?;
            assert_eq!(messages.len() as u64, run.messages);
            for (seq, payload) in messages {
                assert!(span.contains(&seq));
                state.messages.insert((queue.id, seq), payload);
                contents.homes.insert((queue.id, seq), Home::run(run.id));
            }
        }
    }
    Ok(contents)
}

fn read_run(
    store: &mut Store,
    disk: &dyn Disk,
    run: RunId,
) -> Result<Vec<(Seq, Vec<u8>)>, StoreFailed> {
    let mut all = Vec::new();
    let mut from = 0;
    loop {
        store.read_run(run, from);
        while let Some(request) = store.poll(0) {
            store.complete(0, perform(disk, request))?;
        }
        let mut ended = None;
        while let Some(event) = store.poll_event() {
            match event {
                Event::RunBlock { messages, at_end, .. } => {
                    from = messages.last().map_or(from, |message| message.0 + 1);
                    all.extend(messages.into_iter().map(|(seq, _, payload)| (seq, payload)));
                    ended = Some(at_end);
                }
                Event::Evacuate { .. } | Event::Durable(_) => {}
                event => panic!("{event:?}"),
            }
        }
        if ended.expect("every read is answered") {
            return Ok(all);
        }
    }
}
