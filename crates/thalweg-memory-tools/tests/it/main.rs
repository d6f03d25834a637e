//! The toolbox on recorded programs, and its page in a browser.

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
