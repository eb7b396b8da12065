//! The engine: how operations are handed to the kernel.

use slimio_ring::Refused;

use crate::bulk::{Bulk, Extras};
use crate::plain::PlainPath;
use crate::target::Target;
use crate::uring::UringPath;
use crate::{Device, OpenError, Polling};

/// Default limit of operations in flight on a path.
pub const IN_FLIGHT_DEFAULT: u32 = 64;

/// Largest value of [`PathOptions::in_flight_max`].
pub const IN_FLIGHT_MAX: u32 = 4096;

/// The engine that the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring, or plain system calls if io_uring is refused.
    Best,
    /// Plain system calls.
    Plain,
}

/// How paths are opened.
#[derive(Clone, Copy, Debug)]
pub struct PathOptions {
    /// The engine: how operations are handed to the kernel.
    pub engine: EngineChoice,
    /// Limit of operations in flight on one path; it may be at most [`IN_FLIGHT_MAX`].
    pub in_flight_max: u32,
    /// Whether paths bypass the kernel's page cache, if the file system allows it.
    pub direct: bool,
    /// Whether an NVMe namespace is accessed by passthrough instead of as a block device.
    pub passthrough: bool,
    /// Which events [bulk paths](crate::WholeDevice::open_bulk_path) poll for.
    pub polling: Polling,
    /// Whether bulk paths register their [buffers](Device::buffer) with the kernel, if the kernel
    /// allows it and registering saves work.
    pub registered: bool,
}

impl Default for PathOptions {
    fn default() -> Self {
        Self {
            engine: EngineChoice::Best,
            in_flight_max: IN_FLIGHT_DEFAULT,
            direct: true,
            passthrough: true,
            polling: Polling::default(),
            registered: true,
        }
    }
}

/// How operations are handed to the kernel, and why a better way is not used.
#[derive(Clone, Debug)]
pub(crate) enum Engine {
    Uring,
    Plain { why: Option<Refused> },
}

impl Engine {
    pub(crate) fn choose(choice: EngineChoice) -> Self {
        match (choice, slimio_ring::probe()) {
            (EngineChoice::Plain, _) => Self::Plain { why: None },
            (EngineChoice::Best, Ok(_)) => Self::Uring,
            (EngineChoice::Best, Err(refused)) => Self::Plain { why: Some(refused) },
        }
    }

    /// Opens a path to a target, as a bulk path if `bulk` is given. If the kernel refuses a ring
    /// for the path, this path and all later paths use plain system calls.
    pub(crate) fn open(
        &mut self,
        target: Target,
        bulk: Option<&mut Bulk>,
    ) -> Result<Box<dyn Device + Send>, OpenError> {
        let target = match self {
            Self::Plain { .. } => {
                bulk.into_iter().for_each(Bulk::opened_plainly);
                target
            }
            Self::Uring => {
                let mut target = Some(target);
                let mut open = |extras: &Extras| {
                    let target_now = target.take().expect("a failed attempt returns the target");
                    UringPath::new(target_now, extras).map_err(|(target_back, refusal)| {
                        target = Some(target_back);
                        refusal
                    })
                };
                let opened = match bulk {
                    Some(bulk) => bulk.open(open),
                    None => open(&Extras::default()).map_err(Refused::from),
                };
                match opened {
                    Ok(path) => return Ok(Box::new(path)),
                    Err(refused) => *self = Self::Plain { why: Some(refused) },
                }
                target.expect("a failed attempt returns the target")
            }
        };
        Ok(Box::new(PlainPath::new(target)?))
    }

    /// Why there is no ring; `None` if there is one.
    pub(crate) fn why_no_ring(&self) -> Option<&'static str> {
        match self {
            Self::Uring => None,
            Self::Plain { why: Some(_) } => Some("there is no io_uring"),
            Self::Plain { why: None } => Some("plain system calls were asked for"),
        }
    }

    /// Whether this is the engine that was asked for.
    pub(crate) fn is_best(&self) -> bool {
        !matches!(self, Self::Plain { why: Some(_) })
    }

    /// The engine in words, as the end of "direct I/O on files …".
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Self::Uring => "through io_uring",
            Self::Plain { .. } => "through plain system calls",
        }
    }

    pub(crate) fn notes(&self) -> Option<String> {
        match self {
            Self::Uring => None,
            Self::Plain { why: Some(refused) } => Some(format!("no io_uring: {refused}")),
            Self::Plain { why: None } => {
                Some("no io_uring: plain system calls were asked for".into())
            }
        }
    }
}
