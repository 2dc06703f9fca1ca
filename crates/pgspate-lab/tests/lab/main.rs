//! The lab as a whole, on real servers.

mod all_experiments;
mod page;
mod runs;
mod support;
mod user_server;
