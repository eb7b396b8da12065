//! The simulated device keeps the contract that every device keeps.

use slimio_device::WriteCache;
use slimio_sim::contract::{CONTRACT_LBAS, check_all};
use slimio_sim::{Order, SimConfig, SimDisk};

#[test]
fn sim_device_keeps_the_contract() {
    for order in [Order::Fifo, Order::Lifo, Order::Random] {
        for write_cache in [WriteCache::Volatile, WriteCache::Stable] {
            let config = SimConfig { order, write_cache, ..SimConfig::default() };
            check_all(|| {
                let disk = SimDisk::new(config);
                let space = disk.add_space(CONTRACT_LBAS);
                Box::new(disk.open_path(space))
            });
        }
    }
}
