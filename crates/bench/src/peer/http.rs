//! Sends the file by HTTP: nginx with sendfile (Debian's `nginx-light`) on the server, curl on every host.

use super::{Job, Peer};
use crate::Result;
use crate::crew::Crew;

pub(super) const PEER: Peer =
    Peer { name: "nginx + curl", flags: "sendfile, TCP cubic; to /dev/null, size checked", run };

const PORT: u16 = 8080;

fn run(job: &Job<'_>) -> Result<Vec<Option<f64>>> {
    let mut crew = Crew::new();
    let configuration = job.folder.join("nginx.conf");
    std::fs::write(&configuration, configuration_of(job))?;
    let mut command = job.star.host(0).command("nginx");
    command.arg("-p").arg(job.folder).arg("-c").arg(&configuration);
    command.arg("-e").arg(job.folder.join("error.log"));
    crew.start(&mut command)?;
    job.await_port(0, PORT)?;
    crew.restart_clock();
    let url = format!("http://{}:{PORT}/{}", job.server(), job.name());
    let mut clients = Vec::new();
    for host in job.receivers() {
        let mut command = host.command("curl");
        // No size check here: curl fails if it receives fewer bytes than `Content-Length` says.
        clients.push(crew.start(command.args(["-sSf", "-o", "/dev/null", &url]))?);
    }
    job.await_ends(&mut crew, &clients)
}

/// nginx's configuration. All its files are in the job's folder, so that it needs nothing below `/var`.
fn configuration_of(job: &Job<'_>) -> String {
    let root = job.file.parent().unwrap_or(job.file).display();
    let folder = job.folder.display();
    format!(
        "user root;\nworker_processes auto;\ndaemon off;\npid {folder}/nginx.pid;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  sendfile on;\n  tcp_nopush on;\n  access_log off;\n  client_body_temp_path {folder}/body;\n  \
         proxy_temp_path {folder}/proxy;\n  fastcgi_temp_path {folder}/fastcgi;\n  uwsgi_temp_path {folder}/uwsgi;\n  \
         scgi_temp_path {folder}/scgi;\n  server {{ listen {}:{PORT}; root {root}; }}\n}}\n",
        job.server()
    )
}
