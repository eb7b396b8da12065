//! Sessions of the target under random hosts. A witness reads the same bytes. What the sessions do
//! to the drive and send to the host must agree with what the witness expects. `cargo x fuzz` runs
//! this for longer.

mod host;
mod witness;
mod world;

use fastrand::Rng;
use slimio_testing::damage::fuzz;

use crate::world::World;

/// Most heap memory that a session may take: for its data, its capsules, the bytes that wait to be
/// sent, and the witness's copy of all that. What all sessions share does not count.
const HEAP_MAX: u64 = 24 << 20;

/// No session may panic. Each must end, take bounded memory, and carry out only whole and valid
/// commands.
#[test]
fn random_hosts_are_survived() {
    let mut world = World::new();
    fuzz(|rng| {
        let heap = allocation_counter::measure(|| one_host(&mut world, rng));
        assert!(heap.bytes_max < HEAP_MAX, "a session takes {} bytes", heap.bytes_max);
    });
}

fn one_host(world: &mut World, rng: &mut Rng) {
    match rng.usize(..8) {
        0 => world.noise(rng),
        1 => world.host(rng, 0, 12),
        2 => world.host(rng, 10, 40),
        _ => world.host(rng, 10, 8),
    }
}
