//! The confirm latency that a window steers for: what there is without queueing, and what a queue may add.
//!
//! ```text
//!   net     the kernel's round trip without our own queue, at most the latency; 0 where there is none
//!   s       least (latency - net) of the last 5 to 10 s, not above 4 * least ever + 0.5 ms;
//!           where the broker tells what its commits take, that; before RabbitMQ not above half the time of what makes it quick, nor
//!           above the least that any publisher of the process has seen, if that is more
//!           over a distance, where the broker tells that n publish: at most 8 ms + 1 ms * n + 2.5 commit times that it tells
//!           where the link is narrow: at most the least (latency - the kernel's last reading) of the last 5 to 10 s
//!   least ever  of s, and not less than the commit time that the broker tells: 0 elsewhere, and on a quick disk
//!   base    net + s
//!   target  base + min(max(commits, batches), 100 ms) + min(net, 4 ms) + min(0.15 net, 20 ms)
//!           where it is told their sum in place of their maximum
//!           and if that is more, but 400 ms above the base at most, or 1 ms * n over a distance: sig * visit / W
//!           or, 16 ms above it at most: sig * fill / W
//!           or, over a distance: base + min(sig * visits / W, 0.8 net, which counts as 20 to 30 ms)
//!           or, there: base + min(sig * visits of few / W, 20 ms)
//!           next door times the part that the broker asks for, 0.3 ms above the base at least, and so visit and fill
//!
//!   commits   max(1.25 * least ever s, 0.75 s + refill); before RabbitMQ 0.5 s;
//!             where it is told, and that n publishers share the commits, 1.2 s * part + 0.6 s / n
//!   refill    2.25 s / n / (1 + mean size / 500 B) - net, at least 0, where 1 MB is in flight to our broker, or it tells
//!             its commit time to one that does not know the network; else 0
//!   part      (16 MB / (n * W * (mean size + 200 B)))^(1/4), between 0.75 and 1.25
//!   batches   between 0.3 and 20 ms, the less the larger W; before RabbitMQ by what it carries and takes: [crate::batch_wait]
//!   visit     messages of one visit and a quarter: 80 KiB / (mean size + 200 B) on our broker, in a crowd of one;
//!             0 elsewhere and where the link is narrow
//!   visits    messages of 16 visits, and of few: of 35 / n where the broker tells n; where `visit` is not 0
//!   fill      what few publishers next door have in flight together, where the broker tells how many they are:
//!             [crate::commit_fill]; 0 elsewhere
//!   sig       least of the last 3 means, see [crate::pfw]
//! ```
//!
//! What each part is for:
//!
//! - **commits.** A confirm waits for the commit that is running and then for its own. On an idle broker `s` is
//!   one commit, in a steady flow two, and that flow must not look like a queue: hence the least ever.
//!   One publisher that alone keeps a slow disk busy writes for as long as a commit takes to refill what the last one confirmed, so
//!   a window of one commit leaves the disk idle for every other one. Twenty do so in turns. The smaller the messages, the longer
//!   that takes for the same bytes. What is on a long way fills the disk meanwhile.
//! - **visit.** A thousand publishers wait for each other however small their windows are; smaller ones only make each
//!   visit dearer. Twelve messages each brought 162 000 msg/s, a hundred 262 000. So while a window does not fill a visit
//!   and a quarter of the next, it is not cut for what the others do: the latency at which it would is the target. In a
//!   [crowd](crate::crowd) it is less. Where
//!   messages cost far more than visits this would be a queue for nothing, so only a broker that says how it reads is
//!   trusted with it. Where the queue is before a narrow link, whose kernel's round trip is most of the wait, it would be
//!   one, too.
//! - **visits over a distance.** What is on the way makes no visit longer. Where a slow machine, and not the way, is what carries no
//!   more, twenty whose windows hold what is on the way and 6 ms have three quarters of the best rate. With three visits each twenty of
//!   5 kB have 88 % of it over 33 ms, at three quarters of its knee's p99, with seven 96 %, and over 100 ms 90 %, at 0.6 times. One of
//!   200 B with what waits 6 ms has 90 % over 10 ms.
//! - **A narrow link** is full, and one publisher has less than 1.6 MB/s of it. What varies there is the link's queue and not the
//!   service time. Who knows a longer way than others would take it all; where small windows may wait up to 100 ms, they
//!   become equal. Twenty who begin together never see a confirm that did not wait for the others: what their kernels see of
//!   that queue is none of the broker's time, and what n publishers may make a broker take is known where it tells n.
//! - **min(net, 4 ms), 0.15 net.** TCP's segments and acknowledgements need some milliseconds, and a longer way's
//!   rounds vary more.
//! - **The broker's commit time.** A disk that becomes slow would be taken for a queue: with a flush of 8 ms in place of
//!   0.2 one publisher had a hundredth of what it has when it begins on such a disk. Told, it is as if it did. And of
//!   twenty each sees another quickest moment, and who has most in flight fills the commits
//!   that it waits for: its `s` is the longest, its target the highest, and it gets more. Of twenty on a disk of 8 ms one had
//!   ten times the share of another, and once nearly all. With one number for all of them, the broker's, they steer for one
//!   latency, and since large windows (part) and small ones (batches) wait for less the larger they are, they become equal. What a
//!   commit takes for its bytes is in that number, so on fast and on slow machines, of small and of large messages, 2.2 times it
//!   is where disk and processors are kept busy; one alone, who does nothing while it waits, needs somewhat more.
//! - **The part** is what our broker [tries out](crate::FillTrial) where few publish next door on a quick disk: how much of all this a machine
//!   needs differs from one to the next by a factor of two and more, and only the broker sees whether more brings anything.
//! - **Half of what makes a RabbitMQ quick.** Of twenty that share its queue some never see it short. With service times of 10 to 16
//!   ms, of which they took the fourfold for a change of the broker's, some had targets of 55 to 77 ms beside 25 of the
//!   others, which stood at their floors, and all had a p99 of 2.3 times the knee's.
//! - **The cap on s.** With a thousand flows in overload nobody ever sees an empty queue; without the cap
//!   each takes the others' queue for the base, and all grow. Without `net` a longer route would be taken
//!   for overload, so there the cap is 100 ms above the least, and a window that was 10 s at its floor
//!   takes what it measures for the base.

use crate::batch_wait::{BATCH_BYTES, batch_wait_us};
use crate::broker_kind::BrokerKind;
use crate::carried::Carried;
use crate::commit_cost::CommitTime;
use crate::commit_fill::{FILL_MAX_US, fill_messages};
use crate::crowd::Crowd;
use crate::kernel_reading::KernelReading;
use crate::network_rtt::{DISTANT_MIN_US, Known, NetworkRtt};
use crate::rabbitmq_work::RabbitMqWork;
use crate::slow_disk::SlowDisk;
use crate::together::Together;
use crate::windowed_min::WindowedMin;

/// Delay above the base that commits and batches are allowed at most: bounds the harm of a wrong `s`.
pub(crate) const ALLOWANCE_MAX_US: f64 = 100_000.0;
/// What the network is allowed at most, on top of it.
pub(crate) const NETWORK_ALLOWANCE_MAX_US: f64 = NETWORK_NEAR_US + NETWORK_VARIANCE_MAX_US;
const NETWORK_NEAR_US: f64 = 4_000.0;
const NETWORK_VARIANCE: f64 = 0.15;
const NETWORK_VARIANCE_MAX_US: f64 = 20_000.0;
/// Waiting for the running commit, in units of the least `s` ever and of `s`.
const COMMITS_OF_LEAST: f64 = 1.25;
const COMMITS: f64 = 0.75;
/// Of a publisher that has so many bytes in flight, the overhead included, for messages of no size: so much more.
const HEAVY_BYTES: f64 = 1_000_000.0;
const COMMITS_HEAVY: f64 = 2.25;
/// RabbitMQ's commits, where they take longer, in units of `s`: that a large window raises itself, so with more the largest grows.
const COMMITS_RABBITMQ: f64 = 0.5;
/// Of those whom the broker tells what commits take, and so much more of one alone.
const COMMITS_TOLD: f64 = 1.2;
const COMMITS_TOLD_ALONE: f64 = 0.6;
/// Windows which together, were all of them alike, hold more bytes than this wait for less of it, in inverse proportion to
/// this root of them, and others for more, within these bounds.
const TOLD_BYTES: f64 = 16_000_000.0;
const TOLD_ROOT: f64 = 0.25;
const TOLD_PART_MIN: f64 = 0.75;
const TOLD_PART_MAX: f64 = 1.25;
/// What may be added until a window fills its visits.
pub(crate) const VISIT_ALLOWANCE_MAX_US: f64 = 400_000.0;
/// Over a distance so many visits of each may wait at the broker,
const VISITS_DISTANT: f64 = 16.0;
/// for such a part of the way's time, or for the first of these times if that is more, and for the second at most.
const VISITS_DISTANT_PART: f64 = 0.8;
const VISITS_DISTANT_MIN_US: f64 = 20_000.0;
const VISITS_DISTANT_MAX_US: f64 = 30_000.0;
/// Of few publishers so many of all together may, for the first of these times.
const VISITS_DISTANT_TOGETHER: f64 = 35.0;
/// What a message takes in a visit beside its body: frames, method and properties.
pub(crate) const OVERHEAD_BYTES: f64 = 200.0;
/// A broker that asks for a part of it leaves a window so much, in microseconds,
const PART_LEAST_US: f64 = 300.0;
/// and is believed within these bounds, in thousandths.
const PART_LEAST: u32 = 300;
const PART_MOST: u32 = 2_000;
/// So many times the commit before is another disk.
const COMMIT_SLOWER: f64 = 1.5;
/// Over a distance, at a broker that tells how many publishers it has, a message takes so long at most, so much more for each
/// of them whose visit it waits for, and so many commits.
const SERVICE_TOLD_US: f64 = 8_000.0;
const SERVICE_TOLD_EACH_US: f64 = 1_000.0;
const SERVICE_TOLD_COMMITS: f64 = 2.5;
/// A broker is believed so much: bounds the harm of one that tells nonsense.
const COMMIT_MAX_US: f64 = 1_000_000.0;
const SERVICE_MIN_US: u64 = 10;
const SERVICE_BUCKET_US: u64 = 5_000_000;
/// What shares a visit to a connection before RabbitMQ, at least.
const FLOOR_RABBITMQ_MESSAGES: u32 = 12;
/// The cap on `s`, from the least ever seen.
const DRIFT_FACTOR: f64 = 4.0;
const DRIFT_SLACK_US: f64 = 500.0;
/// The same where messages wait for the link: it is not the broker whose time varies.
const NARROW_FACTOR: f64 = 1.25;
/// A link is narrow if it is full and one publisher gets less of it: a visit's bytes take 50 ms and more.
const NARROW_BYTES_PER_US: f64 = 1.6;
/// Half a segment of 1448 bytes.
const SHARED_PACKET_BYTES: f64 = 724.0;
/// Two segments: what TCP sends next.
const UNSENT_BYTES: f64 = 2_900.0;
/// The cap's slack where the network is not known: as much as a route may lengthen unseen.
const DRIFT_UNKNOWN_US: f64 = 100_000.0;

#[derive(Debug)]
pub(crate) struct DelayTarget {
    local: bool,
    added_max_us: f64,
    broker: BrokerKind,
    network: NetworkRtt,
    service: WindowedMin,
    /// The same beyond the kernel's round trip as it is, the link's queue and all.
    beyond: WindowedMin,
    /// The quickest confirm since the last round or reading. All that is kept of the others is that they were slower.
    quickest_us: u64,
    service_least: f64,
    /// The same, before the route became longer.
    former_service_least: f64,
    slow_disk: SlowDisk,
    /// As the broker tells it; 0: not worth it, or it does not.
    commit_us: f64,
    /// Those who share its commits; `None` where it does not tell.
    publishers: Option<f64>,
    /// Of what a window next door may have in flight, as the broker asks for.
    part: f64,
    /// What all publishers of this process have the broker carry.
    carried: Carried,
    /// The least time that it took for a message of any of them; 0: nobody tells.
    least_together_us: f64,
    /// Of a message, the overhead included.
    message_bytes: f64,
    /// Messages wait for a link that carries little.
    narrow: bool,
    base_us: f64,
    target_us: f64,
    crowd: Crowd,
    /// What fills a visit, where the target was raised for its sake; otherwise infinite.
    window_max: f64,
}

impl DelayTarget {
    /// `local`: the network's round trip is known to be 0.
    pub(crate) fn new(local: bool, added_max_us: u64) -> DelayTarget {
        DelayTarget {
            local,
            added_max_us: added_max_us as f64,
            broker: BrokerKind::Unknown,
            network: NetworkRtt::default(),
            service: WindowedMin::new(SERVICE_BUCKET_US),
            beyond: WindowedMin::new(SERVICE_BUCKET_US),
            quickest_us: u64::MAX,
            service_least: f64::INFINITY,
            former_service_least: f64::INFINITY,
            slow_disk: SlowDisk::default(),
            commit_us: 0.0,
            publishers: None,
            part: 1.0,
            carried: Carried::default(),
            least_together_us: 0.0,
            message_bytes: 0.0,
            narrow: false,
            base_us: 0.0,
            target_us: 0.0,
            crowd: Crowd::default(),
            window_max: f64::INFINITY,
        }
    }

    /// What is known of the broker.
    pub(crate) fn set_broker(&mut self, kind: BrokerKind) {
        self.broker = kind;
    }

    /// Without queueing; 0 before the first round.
    pub(crate) fn base_us(&self) -> f64 {
        self.base_us
    }

    /// With it; 0 before the first round.
    pub(crate) fn us(&self) -> f64 {
        self.target_us
    }

    /// The largest window that this latency is good for: where only a visit's sake makes it so, what fills the visit.
    pub(crate) fn window_max(&self) -> f64 {
        self.window_max
    }

    /// Between the two, at this share of what queueing may add.
    pub(crate) fn part_us(&self, share: f64) -> f64 {
        self.base_us + share * (self.target_us - self.base_us)
    }

    pub(crate) fn network(&self) -> Option<u64> {
        self.network.get()
    }

    /// Whether the way is long, and takes longer than the broker does.
    pub(crate) fn is_distant(&self) -> bool {
        let network_us = self.network.get().unwrap_or(0) as f64;
        network_us >= DISTANT_MIN_US as f64 && network_us > 0.5 * self.base_us
    }

    /// Windows below this are too small for the broker, whatever waits: a visit costs RabbitMQ as much as a message or two.
    pub(crate) fn floor_messages(&self) -> u32 {
        if self.broker == BrokerKind::RabbitMq { FLOOR_RABBITMQ_MESSAGES } else { 1 }
    }

    /// Whether the broker tells how it reads.
    pub(crate) fn has_visits(&self) -> bool {
        self.broker.visit_bytes() > 0
    }

    /// Messages of a window that wait in the kernel for a narrow link beyond what keeps TCP busy: nobody need guess for them
    /// what the way takes without a queue. Each reading counts once.
    pub(crate) fn too_many(&mut self) -> Option<f64> {
        let unsent_bytes = self.network.take_unsent() as f64;
        let excess = (unsent_bytes - UNSENT_BYTES) / self.message_bytes;
        (self.narrow && excess > 0.0).then_some(excess)
    }

    /// Whether messages wait for the link, and not for the broker.
    pub(crate) fn is_narrow(&self) -> bool {
        self.narrow
    }

    /// Whether several messages fit into a packet, and it is the link that they wait for. 66 bytes of headers
    /// around each of 200 B are a fifth of what a link carries, around five of them a twentieth.
    pub(crate) fn wants_full_packets(&self) -> bool {
        self.narrow && self.message_bytes <= SHARED_PACKET_BYTES
    }

    pub(crate) fn network_rises(&self) -> bool {
        self.network.rises()
    }

    pub(crate) fn knows_network(&self) -> bool {
        self.local || self.network.get().is_some()
    }

    /// A confirm took so long, of a broker that did not stand still.
    pub(crate) fn add(&mut self, now_us: u64, rtt_us: u64) {
        if rtt_us >= self.quickest_us {
            return;
        }
        self.quickest_us = rtt_us;
        self.network.confirmed(now_us, rtt_us);
        let network_us = self.network_us(rtt_us as f64) as u64;
        self.service.add(now_us, (rtt_us - network_us.min(rtt_us)).max(SERVICE_MIN_US));
        let beyond_us = rtt_us.saturating_sub(self.network.last_us());
        self.beyond.add(now_us, beyond_us.max(SERVICE_MIN_US));
    }

    /// A round is over: its mean latency, the least of the last ones, and the window and size of message it was for.
    pub(crate) fn set(&mut self, mean_us: f64, standing_us: f64, window: f64, size_bytes: f64) {
        let network_us = self.network_us(mean_us);
        if self.quickest_us != u64::MAX {
            self.slow_disk.round((self.quickest_us as f64 - network_us).max(0.0));
        }
        self.quickest_us = u64::MAX;
        let service_us = self.service.get().map_or(mean_us - network_us, |us| us as f64);
        let mut service_us = service_us.max(SERVICE_MIN_US as f64);
        self.service_least = self.service_least.min(service_us);
        let mut least_us = self.service_least.max(self.commit_us);
        self.message_bytes = size_bytes + OVERHEAD_BYTES;
        let in_flight_bytes = window * self.message_bytes;
        self.narrow = self.network.is_full() && in_flight_bytes < NARROW_BYTES_PER_US * standing_us;
        service_us = service_us.min(match self.knows_network() {
            true if self.is_narrow() => NARROW_FACTOR * least_us + DRIFT_SLACK_US,
            true => DRIFT_FACTOR * least_us + DRIFT_SLACK_US,
            false => least_us + DRIFT_UNKNOWN_US,
        });
        let work = self.rabbitmq_work(window / standing_us, size_bytes);
        if let Some(work) = work {
            service_us = service_us.min(work.service_max_us().max(SERVICE_MIN_US as f64));
        }
        let near = network_us < DISTANT_MIN_US as f64;
        if self.narrow
            && let Some(beyond_us) = self.beyond.get()
        {
            service_us = service_us.min(beyond_us as f64);
        }
        if !near {
            let most_us = self.broker_most_us();
            (service_us, least_us) = (service_us.min(most_us), least_us.min(most_us));
        }
        let visit_bytes = if self.narrow { 0.0 } else { self.broker.visit_bytes() as f64 };
        let messages = visit_bytes / (size_bytes + OVERHEAD_BYTES);
        let known_us = Crowd::believable_us(service_us, self.commit_us);
        self.crowd.set(near, (standing_us - network_us - known_us) / window, messages);
        if self.crowd.is_known() {
            (service_us, least_us) = (known_us, least_us.min(known_us));
        }
        let told = self.is_told_commits();
        if told {
            service_us = self.commit_us;
        }
        // Elsewhere a message costs more than its part of a commit, and this would be a queue for nothing.
        // Who is told how many share the commits need not find out by what it carries.
        let alone = self.commit_us > 0.0 || in_flight_bytes >= HEAVY_BYTES;
        let heavy = self.has_visits() && alone;
        let refill = if heavy { COMMITS_HEAVY / (1.0 + size_bytes / BATCH_BYTES) } else { 0.0 };
        let refill_us =
            (refill / self.publishers.unwrap_or(1.0) * service_us - network_us).max(0.0);
        let commits_us = match self.broker {
            BrokerKind::RabbitMq => COMMITS_RABBITMQ * service_us,
            _ if told => self.commits_told(window) * service_us,
            _ => (COMMITS_OF_LEAST * least_us).max(COMMITS * service_us + refill_us),
        };
        let batches_us = batch_wait_us(
            self.broker,
            self.narrow,
            network_us,
            service_us,
            window,
            size_bytes,
            work,
        );
        let waits_us = if told { commits_us + batches_us } else { commits_us.max(batches_us) };
        let mut allowance_us = waits_us.min(ALLOWANCE_MAX_US)
            + network_us.min(NETWORK_NEAR_US)
            + (NETWORK_VARIANCE * network_us).min(NETWORK_VARIANCE_MAX_US);
        self.base_us = network_us + service_us;
        let part = self.part();
        let shared_us = part * (self.base_us + allowance_us) - self.base_us;
        allowance_us = shared_us.max(allowance_us.min(PART_LEAST_US));
        let fill_messages = match self.publishers {
            Some(publishers) if near && visit_bytes > 0.0 => {
                part * fill_messages(publishers, size_bytes, window / (part * standing_us))
            }
            _ => 0.0,
        };
        let carried_us = |messages: f64| standing_us * messages / window;
        let in_flight_us = |messages: f64| carried_us(messages) - self.base_us;
        let visit_messages = part * messages * self.crowd.visits();
        let visit_most_us = match self.publishers {
            Some(publishers) if !near => SERVICE_TOLD_EACH_US * publishers,
            _ => VISIT_ALLOWANCE_MAX_US,
        };
        let visit_us = in_flight_us(visit_messages).min(visit_most_us.min(VISIT_ALLOWANCE_MAX_US));
        let fill_us = in_flight_us(fill_messages).min(FILL_MAX_US);
        if !near {
            let part_us = (VISITS_DISTANT_PART * network_us)
                .clamp(VISITS_DISTANT_MIN_US, VISITS_DISTANT_MAX_US);
            let visits_us = carried_us(VISITS_DISTANT * messages).min(part_us);
            let together = self.publishers.map_or(0.0, |n| VISITS_DISTANT_TOGETHER / n);
            let few_us = carried_us(together * messages).min(VISITS_DISTANT_MIN_US);
            allowance_us = allowance_us.max(visits_us).max(few_us);
        }
        let (most_us, most_messages) = match fill_us > visit_us {
            true => (fill_us, fill_messages),
            false => (visit_us, visit_messages),
        };
        let raised = most_us > allowance_us && standing_us - self.base_us > allowance_us;
        self.window_max = if raised { most_messages } else { f64::INFINITY };
        let allowance_us = allowance_us.max(most_us);
        self.target_us = self.base_us + allowance_us.min(self.added_max_us);
    }

    /// What makes a RabbitMQ quick, if it is told what that carries; this publisher has so many messages carried.
    fn rabbitmq_work(&self, own_per_us: f64, size_bytes: f64) -> Option<RabbitMqWork> {
        let per_us = self.carried.per_us().filter(|_| self.broker == BrokerKind::RabbitMq)?;
        Some(RabbitMqWork::new(per_us, own_per_us, size_bytes, self.least_together_us))
    }

    /// What all publishers of this process see of the broker.
    pub(crate) fn set_together(&mut self, now_us: u64, told: Together) {
        self.carried.add(now_us, told.messages);
        self.least_together_us = told.least_service_us.unwrap_or(0) as f64;
    }

    /// The least time, without the network's, of the last 5 to 10 s; of a slow disk [what it takes](SlowDisk).
    pub(crate) fn service_us(&self) -> Option<u64> {
        self.service.get().map(|least_us| self.slow_disk.own_us(least_us))
    }

    /// A message waits so long for its commit at the broker, whose disk is slow; true if that is much longer than all that was known,
    /// and the service times seen until now are of another disk.
    pub(crate) fn set_commit(&mut self, told: CommitTime) -> bool {
        self.part = f64::from(told.part_permille.clamp(PART_LEAST, PART_MOST)) / 1_000.0;
        let commit_us = (told.us as f64).min(COMMIT_MAX_US);
        self.publishers = (told.publishers > 0).then_some(f64::from(told.publishers));
        let known_us = self.service_least.max(self.commit_us);
        self.commit_us = commit_us;
        let slower = known_us.is_finite() && commit_us > COMMIT_SLOWER * known_us;
        if slower {
            self.service = WindowedMin::new(SERVICE_BUCKET_US);
            self.quickest_us = u64::MAX;
        }
        slower
    }

    /// What a broker that tells how many publishers it has may take for a message; infinite of others.
    fn broker_most_us(&self) -> f64 {
        let most_us = |publishers| {
            SERVICE_TOLD_US
                + SERVICE_TOLD_EACH_US * publishers
                + SERVICE_TOLD_COMMITS * self.commit_us
        };
        self.publishers.map_or(f64::INFINITY, most_us)
    }

    fn known(&self) -> Known {
        Known {
            narrow: self.narrow,
            alone: self.publishers == Some(1.0),
            broker_most_us: self.broker_most_us(),
        }
    }

    /// What is measured is the base: nothing of our own is in the queue, and still no latency is lower.
    pub(crate) fn rebase(&mut self) {
        self.service_least = self.service.get().map_or(self.service_least, |us| us as f64);
    }

    /// The kernel's reading, the window that it was taken under, and the latency of that; true if the route has become
    /// much longer.
    pub(crate) fn set_network(
        &mut self,
        now_us: u64,
        reading: Option<KernelReading>,
        window: f64,
        latency_us: f64,
    ) -> bool {
        self.quickest_us = u64::MAX;
        let before_us = self.network.get();
        let longer = self.network.set(now_us, reading, window, latency_us, self.known());
        if longer {
            self.former_service_least = self.service_least;
        }
        // From here on `s` has the network's part in it, or no longer.
        match (before_us, self.network.get()) {
            (Some(part_us), None) => self.service_least += part_us as f64,
            (None, Some(part_us)) => {
                let least_us = self.service_least - part_us as f64;
                self.service_least = least_us.max(SERVICE_MIN_US as f64);
            }
            _ => return longer,
        }
        self.service = WindowedMin::new(SERVICE_BUCKET_US);
        self.slow_disk = SlowDisk::default();
        longer
    }

    /// Another connection has this round trip: see [`Window::route_is_no_longer`](crate::Window::route_is_no_longer). True if a longer
    /// route was believed in, and all that was taken for its part is the broker's again.
    pub(crate) fn refute_longer(&mut self, now_us: u64, rtt_us: u64, rest_us: u64) -> bool {
        let refuted = self.network.refute(now_us, rtt_us, rest_us);
        if refuted {
            self.service_least = self.former_service_least;
            self.service = WindowedMin::new(SERVICE_BUCKET_US);
            self.slow_disk = SlowDisk::default();
            self.quickest_us = u64::MAX;
        }
        refuted
    }

    /// The part of what a window may have in flight that the broker asks for next door, on a quick disk.
    pub(crate) fn part(&self) -> f64 {
        let near = self.network.get().unwrap_or(0) < DISTANT_MIN_US && !self.narrow;
        if near && self.has_visits() && self.commit_us == 0.0 { self.part } else { 1.0 }
    }

    /// The broker tells what its slow commits take. It is one number for all who publish.
    fn is_told_commits(&self) -> bool {
        self.commit_us > 0.0 && self.knows_network() && !self.narrow
    }

    /// What such a one may wait for above its own: the less, the more it has in flight.
    fn commits_told(&self, window: f64) -> f64 {
        let publishers = self.publishers.unwrap_or(1.0);
        let in_flight_bytes = window * self.message_bytes * publishers;
        let part = (TOLD_BYTES / in_flight_bytes).powf(TOLD_ROOT);
        COMMITS_TOLD * part.clamp(TOLD_PART_MIN, TOLD_PART_MAX) + COMMITS_TOLD_ALONE / publishers
    }

    fn network_us(&self, latency_us: f64) -> f64 {
        let network_us = self.network.get().unwrap_or(0) as f64;
        network_us.min(latency_us - SERVICE_MIN_US as f64).max(0.0)
    }
}

#[cfg(test)]
mod tests;
