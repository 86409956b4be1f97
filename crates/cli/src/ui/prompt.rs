//! Asks the user before data is overwritten or removed.

use std::io::{BufRead, IsTerminal, Write};

use crate::exit::{Exit, Failure, Result};
use crate::ui::table::printable;

/// Asks on the terminal whether to continue. `Refused` if the answer is not yes, or, with `hint`, if stdin is no
/// terminal.
pub(crate) fn confirm(question: &str, hint: &str) -> Result<()> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(
            Failure::new(Exit::Refused, format!("{question}: nobody is there to confirm it")).hint(hint)
        );
    }
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "{}. Type yes to go on: ", printable(question))?;
    stderr.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    if answer.trim().eq_ignore_ascii_case("yes") {
        return Ok(());
    }
    Err(Failure::new(Exit::Refused, "not confirmed; nothing was changed"))
}
