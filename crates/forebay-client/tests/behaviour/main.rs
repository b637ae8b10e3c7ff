//! What the client does, each file one part of it. One program, since each would be built with a client and a broker of its own.

mod broker;
mod calling;
mod channels;
mod consuming;
mod cuts;
mod pool;
mod publishing;
mod recovery;
mod rig;
mod spans;
mod tls;
