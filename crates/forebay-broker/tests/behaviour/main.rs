//! What a broker does, seen from its clients' side, without sockets, threads or a clock.
#![allow(unreachable_pub, reason = "nothing outside a test can reach into it anyway")]

mod ack_timeout;
mod alarms;
mod backlogs;
mod balancing;
mod commit_times;
mod connections;
mod consuming;
mod durability;
mod dying;
mod evacuating;
mod expiring;
mod firehose;
mod getting;
mod half_bodies;
mod large_messages;
mod lasting;
mod lengths;
mod marks;
mod modest;
mod permissions;
mod policies;
mod priorities;
mod publishers;
mod publishing;
mod queue_model;
mod queues;
mod recorded;
mod redelivery;
mod rig;
mod scene;
mod sharing;
mod transactions;
mod waits;
