//! Measures Redis and Valkey, with SETs that the lab's own load generator sends.

use std::fs;

use super::{Plan, Site, Subject};
use crate::commands::compare::stocks;
use crate::compare::Contender;
use crate::error::Result;
use crate::load::{Arrival, Generator, LoadConfig, Until};
use crate::mix::Mix;
use crate::request::RequestWriter;
use crate::run::without_errors;
use crate::server::{Policy, Server, ServerConfig, ServerKind};
use crate::values::ValuePool;

const KEYS: u64 = 100_000;
const VALUE_SIZE: usize = 100;
/// The rows of a server: when writes are made durable, and how many clients write.
const ROWS: [(Policy, usize); 3] =
    [(Policy::Always, 1), (Policy::Always, 50), (Policy::EverySec, 50)];

#[derive(Debug)]
pub(super) struct Redis {
    servers: Vec<Contender>,
}

impl Redis {
    pub(super) fn new(stock: Option<&str>) -> Result<Self> {
        Ok(Self { servers: stocks(stock)? })
    }
}

impl Subject for Redis {
    /// The profile of Redis, which Valkey shares.
    fn profile(&self) -> &'static str {
        "redis"
    }

    fn plan(&self) -> Plan {
        let row = |server: &Contender, (policy, clients): (Policy, usize)| {
            vec![vec![server.title().to_owned(), policy.to_string(), clients.to_string()]]
        };
        Plan {
            heads: vec!["server", "`appendfsync`", "clients"],
            unit: "SETs",
            settings: vec!["default"],
            groups: self.servers.iter().flat_map(|it| ROWS.map(|of| row(it, of))).collect(),
        }
    }

    fn measure(&self, group: usize, _setting: usize, site: &Site) -> Result<Vec<f64>> {
        let (policy, clients) = ROWS[group % ROWS.len()];
        let config = ServerConfig {
            kind: ServerKind::Stock,
            program: self.servers[group / ROWS.len()].program.clone(),
            directory: site.folder.join("server"),
            policy,
            extra: Vec::new(),
            under: site.under.clone(),
        };
        let server = Server::start(&config)?;
        let mix = Mix::named("set", KEYS, None)?;
        let config = LoadConfig {
            address: server.address().clone(),
            clients,
            pipeline: 1,
            arrival: Arrival::Closed,
            check_values: false,
            seed: 1,
        };
        let writer = RequestWriter::new(ValuePool::new(VALUE_SIZE, 0.5, 1));
        let mut generator = Generator::connect(config, mix, writer)?;
        // First comes a warm-up, a third as long as the measurement. It is not counted, because
        // files are made and memory is touched for the first time meanwhile.
        generator.run(Until::Elapsed(site.time / 3))?;
        let report = without_errors(generator.run(Until::Elapsed(site.time))?)?;
        drop(generator);
        site.check(&fs::read_to_string(site.folder.join("server/server.log")).unwrap_or_default());
        server.stop()?;
        Ok(vec![report.requests_per_s()])
    }
}
