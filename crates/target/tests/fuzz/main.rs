//! Sessions of the target under random hosts: what they do to the drive and say to the host is
//! compared with what a witness has read from the same bytes. `cargo x fuzz` runs this for longer.

mod host;
mod witness;
mod world;

use fastrand::Rng;
use slimio_testing::damage::fuzz;

use crate::world::World;

/// Most heap that a session may have beside what is kept for all of them: its data, its capsules,
/// what waits to be sent, and what the witness keeps of the same.
const HEAP_MAX: u64 = 24 << 20;

/// The session does not panic, ends, takes bounded memory, and carries out whole valid commands only.
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
