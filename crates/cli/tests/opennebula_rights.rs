//! Rights: what users of OpenNebula may name and what they may not, and the token of the drivers.

use crate::opennebula_common::{Cloud, Disk, USER, packed, plain};

#[test]
fn a_user_gets_no_image_of_others_by_its_name() {
    let Some(cloud) = Cloud::new(1, 1) else { return };
    let disk = cloud.bench.path("disk.img").display().to_string();
    for name in ["lab-a", "own"] {
        assert!(cloud.bench.see(&format!("capture disk.img {name} -q")).ends_with("exit: 0\n"));
    }
    assert!(cloud.store("cp", 3, &format!("<PATH>{disk}</PATH>")).is_ok());
    cloud.image(3, "main:one-3");
    // A disk that the backup of a machine has, and one of which OpenNebula knows nothing.
    cloud.machine(4, 3, &[]);
    for name in ["one-vm-4-disk-0", "one-99", "one-x"] {
        assert!(cloud.bench.see(&format!("clone web {name} -q")).ends_with("exit: 0\n"));
    }
    let other = USER + 1;
    let cp = |user, name: &str, template: &str| {
        cloud.store_as(user, "cp", (7, &format!("<PATH>diskcast:{name}</PATH>")), template)
    };
    let list = "<DISKCAST_IMAGES>lab-* one-*</DISKCAST_IMAGES>";
    for (name, template) in [
        ("own", ""),
        ("lab-a", ""),
        ("one-3", ""),
        ("one-3@1", list),
        ("one-vm-4-disk-0@1", ""),
        ("one-99", ""),
        ("one-x", list),
        ("own", list),
        ("web", list),
    ] {
        let said = cp(other, name, template).unwrap_err();
        assert!(
            said.contains("belongs to another user")
                || said.contains("not for users")
                || said.contains("show -x"),
            "{said}"
        );
        assert!(cp(0, name, template).is_ok(), "{name}: oneadmin may");
    }
    for (user, name, template) in
        [(other, "web", ""), (other, "lab-a@1", list), (USER, "one-3@1", ""), (USER, "one-vm-4-disk-0@1", "")]
    {
        assert_eq!(cp(user, name, template).map(drop), Ok(()), "{name}");
    }

    // The marketplace shows as much. OpenNebula hands it over as the first word.
    let shown = |template: &str| {
        let about = format!(
            "<MARKET_DRIVER_ACTION_DATA><MARKETPLACE><ID>100</ID><TEMPLATE>{template}</TEMPLATE></MARKETPLACE>\
             </MARKET_DRIVER_ACTION_DATA>"
        );
        let word = packed(&about);
        let shown = cloud.run(cloud.script("market", "monitor", &format!("{word} 100")), "").unwrap();
        let apps = shown.lines().filter_map(|line| line.strip_prefix("APP=\"")?.strip_suffix('"'));
        apps.map(plain).collect::<Vec<String>>()
    };
    let [app] = &shown("")[..] else { panic!("{:?}", shown("")) };
    assert!(app.contains("NAME=\"web\"\nSOURCE=\"diskcast:web@1\""), "{app}");
    let since = app.split("REGTIME=\"").nth(1).unwrap().split('"').next().unwrap();
    let made = cloud.bench.json("images web")[0]["created"].as_str().unwrap().to_owned();
    assert_eq!(cloud.bench.tool(&format!("date -u -d @{since} +%FT%TZ")).trim(), made);
    let [app] = &shown(list)[..] else { panic!("{:?}", shown(list)) };
    assert!(app.contains("NAME=\"lab-a\""), "{app}");
}

#[test]
fn the_token_is_renewed_in_its_file_or_its_end_is_told() {
    let Some(cloud) = Cloud::new(1, 1) else { return };
    let mint = |words: &str| {
        let token = cloud.bench.command(&format!("token --write {words}")).output().unwrap().stdout;
        cloud.bench.keep_secret("one.token", &token);
        String::from_utf8(token).unwrap()
    };
    let monitor = || {
        let mut script = cloud.script("datastore", "monitor", "1");
        let input = cloud.bench.path("order");
        std::fs::write(&input, packed(&cloud.order("", ""))).unwrap();
        let output = script.stdin(std::fs::File::open(input).unwrap()).output().unwrap();
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("USED_MB="));
        String::from_utf8(output.stderr).unwrap()
    };
    mint("--expires 2h --no-renewal");
    let said = monitor();
    assert!(said.contains("one.token") && said.contains("can't be renewed"), "{said}");
    mint("--expires 30d");
    assert_eq!(monitor(), "");
    // When two thirds are over there is another one in the file, of its mode, and hosts take it.
    let first = mint("--expires 60s");
    let now = || std::fs::read_to_string(cloud.bench.path("one.token")).unwrap();
    while now() == first {
        assert_eq!(monitor(), "");
        std::thread::park_timeout(std::time::Duration::from_millis(500));
    }
    assert_eq!(cloud.bench.tool("stat -c %a one.token").trim(), "600");
    cloud.machine(1, 3, &[Disk::of("main:web@1")]);
    let disk = cloud.place(1, 1, "disk.0");
    assert_eq!(cloud.transfer(1, &format!("CLONE diskcast main:web@1 {disk} 1 101")), Ok(()));
    // Another server's, or none: told, and the room is told all the same.
    cloud.bench.keep_secret("one.token", "no token");
    assert!(monitor().contains("one.token"));
}
