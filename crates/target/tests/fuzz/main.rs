//! Tests the NVMe/TCP target with random hosts. A session is the target's side of a connection. A
//! witness reads the same bytes as the session, but has its own decoders. The session's replies and
//! its operations on the drive must be as the witness expects. `cargo x fuzz` runs this test for
//! longer.

mod host;
mod witness;
mod world;

use fastrand::Rng;
use slimio_testing::damage::fuzz;

use crate::world::World;

/// Largest size of a session's heap memory, in bytes. The memory holds data, capsules, the bytes
/// that wait to be sent, and the witness's copies of these. Memory that all sessions share does not
/// count.
const HEAP_MAX: u64 = 24 << 20;

/// No session may panic. Each session must end, take bounded memory, and carry out only whole and
/// valid commands.
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
