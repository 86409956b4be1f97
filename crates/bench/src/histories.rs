//! The figure of concurrent writers and readers: the share of linearizable histories. It runs the tests that record
//! what each writer and reader saw, and that search an order of all operations that explains the history.

use std::process::{Command, Stdio};

use crate::context::Context;
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[(
        "versions.linearizable",
        "histories of 32 writers and their readers that one order explains, over all: threads, handles and \
            processes, on a folder, in memory and in versitygw; at least 1",
    )],
    measure,
};

fn measure(context: &Context) -> Result<Vec<Figure>> {
    // With `CI` set, a test fails if versitygw is missing; without it, it would be skipped.
    let output = Command::new("cargo")
        .args(["test", "--quiet", "--package", "diskcast-store", "--test", "store", "linearizable::"])
        .current_dir(&context.root)
        .env("CI", "true")
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some((passed, failed)) = counts(&text) else {
        return Err(
            format!("the tests did not run: {}", String::from_utf8_lossy(&output.stderr).trim()).into()
        );
    };
    let share = passed / (passed + failed);
    let workload =
        format!("{passed} of {} histories, 32 writers and 8 readers of one image", passed + failed);
    Ok(vec![
        Figure::new("versions.linearizable", &[share], "ratio", Bar::AtLeast(1.0))
            .on(&workload, "folder, memory, versitygw"),
    ])
}

/// The numbers of tests that passed and failed, from the test runner's last summary line; `None` if no test ran.
fn counts(said: &str) -> Option<(f64, f64)> {
    let line = said.lines().rfind(|line| line.starts_with("test result:"))?;
    let number = |word: &str| {
        let before = line.split(word).next()?;
        before.split_whitespace().last()?.parse::<f64>().ok()
    };
    Some((number(" passed")?, number(" failed")?)).filter(|(passed, failed)| passed + failed > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_last_line() {
        let said = "running 7 tests\n.......\ntest result: FAILED. 6 passed; 1 failed; 0 ignored; finished in 1.00s\n";
        assert_eq!(counts(said), Some((6.0, 1.0)));
        assert_eq!(counts("test result: ok. 0 passed; 0 failed;"), None);
        assert_eq!(counts("error: could not compile"), None);
    }
}
