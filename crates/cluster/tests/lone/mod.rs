//! A device without a cluster, whose key the test has.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use cluster::Opening;
use cluster::device::Device;
use proto::cluster::{Capability, DeviceId, DeviceKey, rights};
use reqwest::blocking::{Client, RequestBuilder};

pub(crate) struct Lone {
    _runtime: tokio::runtime::Runtime,
    address: String,
    http: Client,
}

impl Lone {
    pub(crate) fn start(folder: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let device = Device::open(folder, Opening::OrNew).unwrap();
        device.stand_alone(DeviceId(1), key());
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = format!("http://{}/device/v1", listener.local_addr().unwrap());
        let router = device.router();
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { _runtime: runtime, address, http: client() }
    }

    /// A request with the epoch of the device's map.
    pub(crate) fn request(&self, method: reqwest::Method, path: &str, capability: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}/{path}", self.address));
        request.header("diskcast-epoch", "0").header("diskcast-capability", capability)
    }
}

/// The device's key.
pub(crate) fn key() -> DeviceKey {
    DeviceKey::from_bytes([3; 32])
}

/// A capability for all commands on a group.
pub(crate) fn all_rights(group: u32) -> Capability {
    Capability {
        device: DeviceId(1),
        key_epoch: 1,
        group: Some(group),
        number: None,
        range: 0..u64::MAX,
        rights: rights::ALL,
        expires: u64::MAX,
        fence: u32::MAX,
        holder: 7,
    }
}

/// A capability as a request has it.
pub(crate) fn sealed(capability: &Capability) -> String {
    BASE64.encode(capability.seal(&key()))
}

fn client() -> Client {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Client::builder().use_preconfigured_tls(tls).no_proxy().build().unwrap()
}
