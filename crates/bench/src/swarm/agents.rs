//! `diskcast switch` on the switches of a room.

use std::io::BufReader;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::Result;
use crate::context::said;
use crate::room::{Room, line_of};

/// Agents that run. Dropping them kills them.
pub(super) struct Agents(Vec<(Child, BufReader<ChildStdout>)>);

impl Agents {
    /// Starts an agent on each of the first `switches` switches, and waits until they work.
    pub(super) fn start(room: &Room, switches: u32) -> Result<Self> {
        let mut agents = Self(Vec::new());
        let server = format!("{}:7717", room.star.host(0).ipv4());
        for switch in 0..switches {
            let mut command = room.star.switch_command(switch, &room.binary().to_string_lossy());
            command.args(["--json", "switch", "--bridge", "br0", "--server", &server]);
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
            let log = BufReader::new(child.stdout.take().expect("piped"));
            agents.0.push((child, log));
            line_of(&mut agents.0.last_mut().expect("just added").1, "switching")?;
        }
        Ok(agents)
    }

    /// Ends them. Returns what each counted.
    pub(super) fn end(mut self) -> Result<Vec<Value>> {
        let mut counted = vec![];
        for (child, log) in &mut self.0 {
            said(Command::new("kill").args(["-TERM", &child.id().to_string()]))?;
            counted.push(line_of(log, "switch_ended")?);
        }
        Ok(counted)
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            // An agent has no state that a kill could damage.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
