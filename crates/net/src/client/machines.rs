//! Requests about machines that boot from the network or run an agent.

use base::Result;
use reqwest::Method;
use serde::Serialize;

use super::{Body, Client};
use crate::api::{
    self, JobRequest, JobsMade, MachineAnswer, MachineCall, MachineChange, MachineLog, MachineStatus,
    Machines, SwitchRequest, Switched,
};

fn json(value: &impl Serialize) -> Body {
    Body::Json(serde_json::to_vec(value).expect("a request is plain data"))
}

impl Client {
    /// Asks what this machine is to do, which booted from the network or runs an agent. Needs no token.
    ///
    /// # Errors
    /// As [`Self::images`].
    pub fn call_of_machine(&self, call: &MachineCall) -> Result<MachineAnswer> {
        self.json(Method::POST, &api::path::machine_call(), json(call))
    }

    /// All machines that boot from the network or run an agent.
    ///
    /// # Errors
    /// `Denied` unless the token is an administrator's; as [`Self::images`].
    pub fn machines(&self) -> Result<Machines> {
        self.json(Method::GET, &api::path::machines(), Body::None)
    }

    /// Changes the table of machines. Returns those that the change is about.
    ///
    /// # Errors
    /// `NotFound` if a name means no machine; as [`Self::machines`].
    pub fn change_machines(&self, change: &MachineChange) -> Result<Vec<MachineStatus>> {
        self.json(Method::POST, &api::path::machine_changes(), json(change))
    }

    /// What [`Self::change_machines`] would return. Nothing is changed.
    ///
    /// # Errors
    /// As [`Self::change_machines`].
    pub fn plan_change(&self, change: &MachineChange) -> Result<Vec<MachineStatus>> {
        self.json(Method::POST, &api::path::machine_change_plans(), json(change))
    }

    /// Gives machines a job.
    ///
    /// # Errors
    /// `Refused`, with nothing changed, if one of them may not have it; as [`Self::machines`].
    pub fn give_job(&self, request: &JobRequest) -> Result<JobsMade> {
        self.json(Method::POST, &api::path::jobs(), json(request))
    }

    /// What [`Self::give_job`] would return. Nothing is changed.
    ///
    /// # Errors
    /// As [`Self::give_job`].
    pub fn plan_job(&self, request: &JobRequest) -> Result<JobsMade> {
        self.json(Method::POST, &api::path::job_plans(), json(request))
    }

    /// Switches machines by the server's power program. A random `id` names this request, so that what is sent again
    /// switches nothing again. Returns how far it is: [`Self::switched`] tells the rest.
    ///
    /// # Errors
    /// `Refused` if the server has no such program, or too much to switch; as [`Self::change_machines`].
    pub fn switch_machines(&self, id: u128, request: &SwitchRequest) -> Result<Vec<Switched>> {
        self.json(Method::PUT, &api::path::machine_power(id), json(request))
    }

    /// How far the request `id` of [`Self::switch_machines`] is.
    ///
    /// # Errors
    /// `NotFound` if the server was restarted since; as [`Self::machines`].
    pub fn switched(&self, id: u128) -> Result<Vec<Switched>> {
        self.json(Method::GET, &api::path::machine_power(id), Body::None)
    }

    /// What the console of the machine with the card `mac` showed of its last job that ended.
    ///
    /// # Errors
    /// `NotFound` if there is nothing; as [`Self::machines`].
    pub fn machine_log(&self, mac: &str) -> Result<MachineLog> {
        self.json(Method::GET, &api::path::machine_log(mac), Body::None)
    }
}
