//! The binary `expertrail`: arguments in, library calls, tables out.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod check;
mod check_kube;
mod compare;
mod completion;
mod config;
mod diagnose;
mod explain;
mod fabric;
mod facts;
mod judge;
mod launch;
mod lint;
mod node;
mod plan;
mod progress;
mod rails;
mod render;
mod runs;
mod stack;
mod topo;
mod worker;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    let code = match Cli::try_parse() {
        Ok(Cli { command: Command::Bench(args) }) => bench::main(&args),
        Ok(Cli { command: Command::Fabric(command) }) => fabric::main(&command),
        Ok(Cli { command: Command::Config(args) }) => config::main(&args),
        Ok(Cli { command: Command::Facts(args) }) => facts::main(&args),
        Ok(Cli { command: Command::Check(args) }) => check::main(&args),
        Ok(Cli { command: Command::Topo(args) }) => topo::main(&args),
        Ok(Cli { command: Command::Stack(args) }) => stack::main(&args),
        Ok(Cli { command: Command::Compare(args) }) => compare::main(&args),
        Ok(Cli { command: Command::Plan(args) }) => plan::main(&args),
        Ok(Cli { command: Command::Lint(args) }) => lint::main(&args),
        Ok(Cli { command: Command::Judge(args) }) => judge::main(&args),
        Ok(Cli { command: Command::Diagnose(args) }) => diagnose::main(&args),
        Ok(Cli { command: Command::Explain(args) }) => explain::main(&args),
        Ok(Cli { command: Command::Launch(args) }) => launch::main(&args),
        Ok(Cli { command: Command::Render(command) }) => render::main(&command),
        Ok(Cli { command: Command::Worker(command) }) => worker::main(command),
        Ok(Cli { command: Command::Completion(args) }) => completion::main(&args),
        Ok(Cli { command: Command::Status(args) }) => runs::status(&args),
        Ok(Cli { command: Command::Logs(args) }) => runs::logs(&args),
        Ok(Cli { command: Command::Clean(args) }) => runs::clean(&args),
        Ok(Cli { command: Command::Rbac(args) }) => runs::rbac(&args),
        Ok(Cli { command: Command::Isolated }) => node::isolated(),
        Err(error) => {
            // Help and version are no errors; clap's own usage code is 2, as DESIGN section 6 wants.
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            let _ = error.print();
            code
        }
    };
    ExitCode::from(code)
}
