//! A server's report about its log and snapshots: `INFO persistence`.

use std::collections::BTreeMap;

use crate::client::Client;
use crate::error::{BenchError, Result};
use crate::snapshot::Kind;

/// The fields of one reply to `INFO persistence`.
pub(crate) struct Persistence(BTreeMap<String, String>);

impl Persistence {
    pub(crate) fn of(client: &mut Client) -> Result<Self> {
        Ok(Self(client.info("persistence")?))
    }

    /// The value of a numeric field. A flag has the value 0 or 1.
    ///
    /// # Errors
    /// When the field is missing, or is not a number.
    pub(crate) fn number(&self, name: &str) -> Result<u64> {
        let text = self.text(name)?;
        let not_one = || BenchError::Reply(format!("INFO persistence: {name} is {text:?}"));
        text.parse().map_err(|_| not_one())
    }

    /// Checks that the last snapshot of a kind did not fail.
    ///
    /// # Errors
    /// When the last snapshot failed, or INFO lacks the field with its status.
    pub(crate) fn check(&self, kind: Kind) -> Result<()> {
        let name = match kind {
            Kind::Save => "rdb_last_bgsave_status",
            Kind::Rewrite | Kind::Growth => "aof_last_bgrewrite_status",
        };
        match self.text(name)? {
            "ok" => Ok(()),
            status => Err(BenchError::Server(format!("{kind} failed: {name} is {status}"))),
        }
    }

    fn text(&self, name: &str) -> Result<&str> {
        let text = self.0.get(name).map(|text| text.trim());
        text.ok_or_else(|| BenchError::Reply(format!("INFO persistence has no field {name}")))
    }
}
