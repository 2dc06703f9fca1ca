//! The lab as a whole, on servers that are really there.

mod all_experiments;
mod page;
mod runs;
mod support;
mod user_server;
