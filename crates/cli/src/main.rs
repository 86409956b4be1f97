//! `diskcast`: captures disks, keeps them as versioned images and multicasts them to many machines.
//!
//! Reads the arguments and the environment, runs one command, prints its result, and exits with one of the codes of
//! `exit.rs`. Only this crate prints, exits, gives hints or reads the environment.

mod args;
mod at_server;
mod boot_image;
mod cli;
mod clock;
mod commands;
mod config;
mod connect;
mod dry_run;
mod exit;
mod help;
mod interrupt;
mod inventory;
mod keys;
mod library;
mod notify;
mod paced;
mod repository;
mod rescue_map;
mod runtime;
mod seen;
mod source;
mod target;
mod ui;
mod unreadable;
mod version;

use std::process::ExitCode;

use clap::FromArgMatches as _;

use crate::cli::{Cli, Command, command_line};
use crate::commands::Context;
use crate::config::Config;
use crate::ui::output::Output;

fn main() -> ExitCode {
    let config =
        Config::load().unwrap_or_else(|why| clap::Error::raw(clap::error::ErrorKind::Io, why + "\n").exit());
    let command = at_server::take_token_files(config.set_defaults(command_line()));
    let matches = cli::matches_of(command);
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let output = Output::new(&cli.global);
    let applied = cli::check_dry_run(&cli.global, &matches)
        .and_then(|()| at_server::apply(&mut cli.global, &mut cli.command, &matches));
    match applied.and_then(|()| run(&Context { global: cli.global, output }, &cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            failure.exit.into()
        }
    }
}

fn run(context: &Context, command: &Command) -> exit::Result<()> {
    interrupt::watch(context.output)?;
    match command {
        Command::Init(args) => commands::init::run(context, args),
        Command::Capture(args) => commands::capture::run(context, args),
        Command::Install(args) => commands::install::run(context, args),
        Command::Fetch(args) => commands::fetch::run(context, args),
        Command::Grow(args) => commands::grow::run(context, args),
        Command::Shrink(args) => commands::shrink::run(context, args),
        Command::Personalize(args) => commands::personalize::run(context, args),
        Command::Serve(args) => commands::serve::run(context, args),
        Command::Netboot(args) => commands::netboot::run(context, args),
        Command::Hosts(args) => commands::hosts::run(context, args),
        Command::Deploy(args) => commands::deploy::run(context, args),
        Command::BootAgent(args) => commands::boot_agent::run(context, args),
        Command::Agent(args) => commands::agent::run(context, args),
        Command::Work(args) => commands::work::run(args),
        Command::BootImage(args) => commands::boot_image::run(context, args),
        Command::Switch(args) => commands::switch::run(context, args),
        Command::Doctor(args) => commands::doctor::run(context, args),
        Command::Status(args) => commands::status::run(context, args),
        Command::Attach(args) => commands::attach::run(context, args),
        Command::Detach(args) => commands::detach::run(context, args),
        Command::Mount(args) => commands::mount::run(context, args),
        Command::Disks(args) => commands::disks::run(context, args),
        Command::Token(args) => commands::token::run(context, args),
        Command::Opennebula(args) => commands::opennebula::run(context, args),
        Command::Images(args) => commands::images::run(context, args),
        Command::Inspect(args) => commands::inspect::run(context, args),
        Command::Log(args) => commands::log::run(context, args),
        Command::Diff(args) => commands::diff::run(context, args),
        Command::Create(args) => commands::create::run(context, args),
        Command::Clone(args) => commands::clone::run(context, args),
        Command::Commit(args) => commands::commit::run(context, args),
        Command::Usage => commands::usage::run(context),
        Command::Copy(args) => commands::copy::run(context, args),
        Command::Tag(args) => commands::tag::run(context, args),
        Command::Remove(args) => commands::remove::run(context, args),
        Command::Profile(args) => commands::profile::run(context, args),
        Command::Prune(args) => commands::prune::run(context, args),
        Command::Verify(args) => commands::verify::run(context, args),
        Command::Key(args) => commands::key::run(context, args),
        Command::Repository(args) => commands::repository::run(context, args),
        Command::Cluster(args) => commands::cluster::run(context, args),
        Command::Metadata(args) => commands::metadata::run(context, args),
        Command::Device(args) => commands::device::run(context, args),
    }
}
