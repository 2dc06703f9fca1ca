//! Facts and options to a plan, with a reason for every choice. Pure: no I/O.
