//! stub
use crate::config::Config; use crate::start_error::StartError; use forebay_broker::Shard; use forebay_store::Disk; use std::sync::Arc;
pub(crate) struct Opened { pub(crate) shard: Shard, pub(crate) disk: Option<Arc<dyn Disk>> }
pub(crate) fn open(_c:&Config)->Result<Opened,StartError>{ Ok(Opened{shard:Shard::default(),disk:None}) }
