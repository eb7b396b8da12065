//! Elements that are handed over between clients.

use std::time::Instant;

use slimio_sim::SimDisk;

use super::{SILENCE_MAX, World, shown};
use crate::common::Client;
use crate::crashes::script::{CLIENT_COUNT, HandOver, Step, encode_line};

impl World {
    /// Lets clients wait for a list, and lets another client push to it. Taking an element is a
    /// unit of its own (a command that is recovered whole or not at all), which follows the push.
    /// Returns false when this life has ended, because the simulated disk has crashed.
    pub(super) fn hand_over(
        &mut self,
        clients: &mut [Client],
        pusher: usize,
        disk: &SimDisk,
        hands_over: &HandOver,
    ) -> Result<bool, String> {
        // The clients wait only if the key holds nothing.
        let clear = Step::Run(hands_over.unit(format!("DEL {}", hands_over.key)));
        if !self.batch((&mut clients[pusher], pusher), disk, &[clear], usize::MAX)? {
            return Ok(false);
        }
        let takers = (1..).map(|after| (pusher + after) % CLIENT_COUNT);
        let takers: Vec<_> = takers.zip(&hands_over.takers).collect();
        for (number, (taker, (line, _))) in takers.iter().enumerate() {
            let mut request = Vec::new();
            hands_over.unit(line.clone()).encode(&mut request);
            if !clients[*taker].try_send_bytes(&request)
                || !wait_for_blocked(&mut clients[pusher], disk, number + 1)
            {
                return Ok(false);
            }
        }
        let push = Step::Run(hands_over.push());
        let is_alive = self.batch((&mut clients[pusher], pusher), disk, &[push], usize::MAX)?;
        for (taker, (_, line)) in takers {
            let unit = hands_over.unit(line.clone());
            let (expected, state) = self.oracle.run(&unit);
            self.units.push((self.now_ms(), unit.clone()));
            self.states.push(state);
            self.wrote[taker] = self.units.len();
            if !is_alive {
                continue;
            }
            let replies: Option<Vec<Vec<u8>>> = (0..2).map(|_| clients[taker].try_read()).collect();
            if disk.has_crashed() {
                continue;
            }
            let replies = replies.ok_or("a waiting client got no reply")?;
            // `BLPOP` replies with the key, too.
            if !replies[1].ends_with(&expected[1]) {
                let [replies, expected] = [replies, expected].map(|replies| shown(&replies));
                return Err(format!(
                    "the waiting form of {line:?} replies {replies}, not {expected}"
                ));
            }
            self.acknowledged(&Step::Run(unit), taker, &replies, true)?;
        }
        Ok(!disk.has_crashed())
    }
}

/// Waits until `count` clients wait. False when this life has ended.
fn wait_for_blocked(client: &mut Client, disk: &SimDisk, count: usize) -> bool {
    let (asked, wanted) = (Instant::now(), format!("\r\nblocked_clients:{count}\r\n"));
    loop {
        let mut request = Vec::new();
        encode_line("INFO clients", &mut request);
        let reply = client.try_send_bytes(&request).then(|| client.try_read()).flatten();
        let Some(reply) = reply.filter(|_| !disk.has_crashed()) else { return false };
        if String::from_utf8_lossy(&reply).contains(&wanted) {
            return true;
        }
        assert!(asked.elapsed() < SILENCE_MAX, "too few clients wait");
    }
}
