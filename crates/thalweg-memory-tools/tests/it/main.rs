//! The toolbox on recorded programs, and its page as a browser shows it.

mod broken_histories;
mod browser;
mod cuts;
mod oracle;
mod oracle_replays;
mod replays;
mod self_test;
mod snapshots;
mod synthetic;
mod traces;
mod versions;
mod writing;
