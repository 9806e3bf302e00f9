//! `expertrail completion`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::node::{finish, print};

/// Arguments of `completion`.
#[derive(Debug, Args)]
#[command(
    after_help = "bash: expertrail completion bash > ~/.local/share/bash-completion/completions/expertrail\n\
                  zsh:  expertrail completion zsh > a folder of $fpath, as _expertrail\n\
                  fish: expertrail completion fish > ~/.config/fish/completions/expertrail.fish"
)]
pub(crate) struct CompletionArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &CompletionArgs) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "expertrail", &mut script);
    finish(print(&String::from_utf8_lossy(&script)).map(|()| 0))
}
