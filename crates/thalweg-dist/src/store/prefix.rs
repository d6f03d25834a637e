//! [`PrefixStore`]: a part of another store.

use std::sync::Arc;
use std::time::Duration;

use thalweg_runtime::Result;

use super::Store;

/// The keys of another store that begin with a prefix (`torch.distributed.PrefixStore`).
#[derive(Clone, Debug)]
pub struct PrefixStore {
    prefix: String,
    store: Arc<dyn Store>,
}

impl PrefixStore {
    /// Creates the part of a store whose keys begin with `prefix/`.
    pub fn new(prefix: impl Into<String>, store: Arc<dyn Store>) -> Self {
        Self { prefix: prefix.into(), store }
    }

    fn name(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }
}

impl Store for PrefixStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.set(&self.name(key), value)
    }

    fn find(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.store.find(&self.name(key))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.store.add(&self.name(key), amount)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.store.compare_set(&self.name(key), expected, desired)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let names: Vec<String> = keys.iter().map(|key| self.name(key)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.store.wait(&names, timeout)
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        self.store.delete_key(&self.name(key))
    }

    /// Returns the number of keys of the whole store.
    fn num_keys(&self) -> Result<usize> {
        self.store.num_keys()
    }

    fn timeout(&self) -> Duration {
        self.store.timeout()
    }

    fn is_in_process(&self) -> bool {
        self.store.is_in_process()
    }
}
