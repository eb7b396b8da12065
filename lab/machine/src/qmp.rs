//! QEMU's own control channel: each command and each answer is a line of JSON.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use slimio_host::Failure;

/// If an answer takes longer than this, QEMU counts as hanging.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    pub(crate) fn connect(path: &Path) -> Result<Self, Failure> {
        let stream = UnixStream::connect(path).map_err(|error| failed(&error))?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(|error| failed(&error))?;
        let mut qmp = Self { stream: BufReader::new(stream) };
        // QEMU first sends a greeting. It takes no other command before qmp_capabilities.
        qmp.line()?;
        qmp.execute("qmp_capabilities", "{}")?;
        Ok(qmp)
    }

    /// Runs a command; `arguments` is a JSON object. Returns QEMU's answer as it is.
    pub(crate) fn execute(&mut self, name: &str, arguments: &str) -> Result<String, Failure> {
        let request = format!(r#"{{"execute":"{name}","arguments":{arguments}}}"#);
        self.stream
            .get_mut()
            .write_all(format!("{request}\n").as_bytes())
            .map_err(|error| failed(&error))?;
        loop {
            let line = self.line()?;
            if line.starts_with(r#"{"return""#) {
                return Ok(line);
            }
            if line.starts_with(r#"{"error""#) {
                return Err(format!("QEMU refused {request}: {line}").into());
            }
            // Any other line reports an event, that is, something that happened meanwhile.
        }
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Err("QEMU has closed its control channel".into()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(failed(&error)),
        }
    }
}

fn failed(error: &std::io::Error) -> Failure {
    format!("QEMU's control channel: {error}").into()
}
