//! RocksDB: random writes by RocksDB's own benchmark, `db_bench`.

use std::path::PathBuf;

use super::child::{Life, installed, rate, text_of};
use super::{Plan, Site, Subject};
use crate::error::Result;

/// The rows: whether each write is durable, and how many threads write.
const ROWS: [(bool, u32); 4] = [(true, 1), (true, 16), (true, 32), (false, 1)];

#[derive(Debug)]
pub(super) struct RocksDb {
    bench: PathBuf,
}

impl RocksDb {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { bench: installed("db_bench", "rocksdb-tools")? })
    }
}

impl Subject for RocksDb {
    fn profile(&self) -> &'static str {
        "rocksdb"
    }

    fn plan(&self) -> Plan {
        let row = |(is_durable, threads): (bool, u32)| {
            vec![vec![if is_durable { "yes" } else { "no" }.to_owned(), threads.to_string()]]
        };
        Plan {
            heads: vec!["`sync`", "threads"],
            unit: "writes",
            settings: vec!["default"],
            groups: ROWS.map(row).to_vec(),
        }
    }

    fn measure(&self, group: usize, _setting: usize, site: &Site) -> Result<Vec<f64>> {
        let (is_durable, threads) = ROWS[group];
        let mut command = Life::OURS.command(&site.under, &self.bench);
        command.args(["--benchmarks=fillrandom", "--value_size=100"]);
        command.arg(format!("--sync={}", u8::from(is_durable)));
        command.arg(format!("--threads={threads}")).arg(format!("--duration={}", site.seconds()));
        command.arg(format!("--db={}", site.folder.join("db").display()));
        let said = text_of(&mut command)?;
        site.check(&said);
        Ok(vec![rate(&said, "fillrandom", "ops/sec")?])
    }
}
