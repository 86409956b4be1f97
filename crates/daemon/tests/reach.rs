//! Tests over real connections on loopback which objects a token reaches.

use base::{Digest, ErrorKind};
use image::ObjectRef;
use net::client::Client;

use crate::common::{draft_of, start};

#[test]
fn objects_of_other_images_do_not_exist_to_a_token() {
    use daemon::auth::authority::Right;
    let bench = start(true);
    let objects_of = |image: &str| {
        let newest = store::Reference::Newest(image.parse().unwrap());
        let (sealed, _) = bench.repository.look(&newest).unwrap();
        let mut objects = Vec::new();
        let mut each = |object: &ObjectRef| {
            objects.push(*object);
            true
        };
        bench.repository.objects_of(&sealed.manifest, &mut each).unwrap();
        objects
    };
    let publish = |image: &str, seed: u32| {
        let any = bench.client(&["*"], Right::Write, u64::MAX);
        any.publish(image, draft_of(seed, &any), &format!("{image} {seed}")).unwrap();
        objects_of(image)
    };
    let reaches = |client: &Client, object: &ObjectRef| match client.object(object) {
        Ok(bytes) => bytes.len() == object.len as usize && client.has_object(object).unwrap(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            let absent = ObjectRef { digest: Digest([7; 32]), ..*object };
            let of_absent = client.object(&absent).unwrap_err().to_string();
            let name = |object: &ObjectRef| object.digest.to_hex()[..12].to_owned();
            let as_absent = error.to_string().replace(&name(object), &name(&absent));
            assert_eq!(as_absent, of_absent);
            assert!(client.mended(object, vec![0; object.len as usize]).is_err());
            client.has_object(object).unwrap()
        }
    };
    let (web, lab) = (publish("web", 0), publish("lab", 1 << 20));
    assert!(web.len() == 5 && lab.len() == 5, "a node and four chunks: {web:?}");
    let reader = bench.client(&["w*"], Right::Read, u64::MAX);
    for _ in 0..2 {
        assert!(web.iter().all(|object| reaches(&reader, object)));
        assert!(!lab.iter().any(|object| reaches(&reader, object)));
    }
    let newer = publish("web", 1 << 10);
    assert!(newer.iter().chain(&web).all(|object| reaches(&reader, object)), "both versions");
    // Who sends objects does not learn from that what others have, and can send the same.
    let writer = bench.writer();
    assert!(!writer.has_object(&lab[1]).unwrap());
    writer.publish("web", draft_of(1 << 20, &writer), "like lab").unwrap();
    assert!(lab.iter().all(|object| reaches(&reader, object) && writer.has_object(object).unwrap()));
}
