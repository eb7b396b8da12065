//! Keeps Debian's packages from starting the services that they install, because the tests start
//! their own servers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::Failure;

const POLICY: &str = "/usr/sbin/policy-rc.d";

/// While this value lives, Debian's packages start no service, because `policy-rc.d` forbids each
/// start.
#[derive(Debug)]
pub struct NoServiceStarts {
    made: bool,
}

impl NoServiceStarts {
    /// Creates `policy-rc.d`, unless it exists already.
    pub fn ask() -> Result<Self, Failure> {
        if Path::new(POLICY).exists() {
            return Ok(Self { made: false });
        }
        let made = Self { made: true };
        fs::write(POLICY, "#!/bin/sh\nexit 101\n")
            .and_then(|()| fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755)))
            .map_err(|error| format!("{POLICY}: {error}"))?;
        Ok(made)
    }
}

impl Drop for NoServiceStarts {
    fn drop(&mut self) {
        if self.made
            && let Err(error) = fs::remove_file(POLICY)
        {
            eprintln!("{POLICY} could not be removed ({error}); remove it by hand");
        }
    }
}
