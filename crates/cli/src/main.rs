//! The binary `expertrail`: arguments in, library calls, tables out.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod progress;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    let code = match Cli::try_parse() {
        Ok(Cli { command: Command::Bench(args) }) => bench::main(&args),
        Err(error) => {
            // Help and version are no errors; clap's own usage code is 2, as DESIGN section 6 wants.
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            let _ = error.print();
            code
        }
    };
    ExitCode::from(code)
}
