use super::*;

fn file(text: &str) -> BrowserFile {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_sandbox_of_the_task_is_one_that_chromium_starts_in() {
    let spec = |text: &str| BrowserSpec::resolve(&BrowserFile::default(), &file(text));
    let error = spec(r#"{"sandbox":"main","network":"none"}"#).unwrap_err().to_string();
    assert_eq!(
        error,
        r#"invalid browser.sandbox "main": expected no `browser.network` beside it: the browser has the network of the sandbox"#
    );
    let check = |text: &str, no_sandbox, user_namespaces: Option<bool>| {
        let found = user_namespaces.map(|user_namespaces| SandboxSpec {
            user_namespaces,
            network: Network::Loopback,
            ..SandboxSpec::default()
        });
        spec(text).unwrap().check_sandbox(no_sandbox, |_| found.ok_or_else(|| "there is none".to_owned()))
    };
    let own = r#"{"sandbox":"main"}"#;
    for (text, no_sandbox, user_namespaces, expect) in [
        ("{}", false, None, None),
        (own, false, Some(true), None),
        (own, true, Some(false), None),
        (own, false, None, Some("browser.sandbox \"main\": there is none")),
        (
            own,
            false,
            Some(false),
            Some(
                "browser.sandbox \"main\": Chromium's own sandbox needs `user_namespaces = true` in `[sandbox]` of the experiment; or set `no_sandbox = true` in `[browser]`",
            ),
        ),
    ] {
        assert_eq!(
            check(text, no_sandbox, user_namespaces).err().as_deref(),
            expect,
            "{text}, {no_sandbox}, {user_namespaces:?}"
        );
    }
}

#[test]
fn a_start_page_is_one_that_the_network_may_let_through() {
    let allow = |rules: &str| format!(r#""network":{{"allow":[{rules}]}}"#);
    let rows = [
        ("http://a.org/x", r#""a.org:80""#, None),
        ("http://A.org./x", r#""a.org:80""#, None),
        ("https://u:p@w.a.org/x", r#""*.a.org:443""#, None),
        ("https://a.org", r#""*:443""#, None),
        ("http://a.org", r#""192.0.2.7:80""#, None),
        ("http://127.0.0.1:8080", r#""127.0.0.1:8080""#, None),
        ("about:blank", "", None),
        ("http://mail.espalier.internal/?sid={sid}", "", None),
        ("http://a.org", "", Some("a.org:80")),
        ("http://a.org", r#""a.org:443""#, Some("a.org:80")),
        ("https://a.org", r#""*.a.org:443""#, Some("a.org:443")),
        ("http://127.0.0.1:8080", r#""localhost:8080""#, Some("127.0.0.1:8080")),
        ("http://[::1]:8080/", r#""a.org:8080""#, Some("[::1]:8080")),
        ("http://[::1]/", r#""[::1]:81""#, Some("[::1]:80")),
    ];
    for (url, rules, missing) in rows {
        let network = format!("{{{}}}", allow(rules));
        let spec = BrowserSpec::resolve(&file(&network), &file(&format!(r#"{{"start_url":"{url}"}}"#)));
        let wanted = missing.map(|missing| {
            format!(
                "browser.start_url {url:?}: pages may not reach it; add {missing:?} to `network.allow` in `[browser]` of the experiment, and to that of the task if it has one"
            )
        });
        assert_eq!(spec.unwrap().check_start().err(), wanted, "{url} {rules}");
    }
    let replayed = r#"{"start_url":"http://a.org","deterministic":{"archive":"a.json"}}"#;
    let spec = BrowserSpec::resolve(&BrowserFile::default(), &file(replayed));
    assert_eq!(spec.unwrap().check_start(), Ok(()));
}

#[test]
fn pages_of_services_are_those_of_the_task() {
    let check = |text: &str, names: &[&str]| {
        let spec = BrowserSpec::resolve(&BrowserFile::default(), &file(text)).unwrap();
        spec.check_services(names.iter().copied()).err()
    };
    assert_eq!(check(r#"{"start_url":"http://mail.espalier.internal/?sid={sid}"}"#, &["mail"]), None);
    assert_eq!(check(r#"{"start_url":"https://espalier.internal.org/"}"#, &[]), None);
    for (text, names, expect) in [
        (
            r#"{"start_url":"http://Shop.espalier.internal:80/x"}"#,
            &["mail"][..],
            r#"browser.start_url "http://Shop.espalier.internal:80/x": the task has no service "shop"; its `services`: mail"#,
        ),
        (
            r#"{"start_url":"http://mail.espalier.internal"}"#,
            &[],
            r#"browser.start_url "http://mail.espalier.internal": the task has no service "mail"; its `services`: none"#,
        ),
        (
            r#"{"deterministic":{"archive":"a.bin"}}"#,
            &["mail"],
            r#"browser.deterministic.archive "a.bin": requests to services differ from rollout to rollout by their session, so they cannot come from an archive; set `misses = "live"`"#,
        ),
    ] {
        assert_eq!(check(text, names).as_deref(), Some(expect));
    }
    assert_eq!(check(r#"{"deterministic":{"archive":"a.bin","misses":"live"}}"#, &["mail"]), None);
    assert_eq!(check(r#"{"deterministic":{"archive":"a.bin"}}"#, &[]), None);
}

#[test]
fn what_no_browser_can_have_is_refused_by_name() {
    let check = |text: &str, expect: &str| {
        let error = BrowserSpec::resolve(&file(text), &BrowserFile::default()).unwrap_err();
        assert_eq!(error.to_string(), expect, "{text}");
    };
    check(
        r#"{"start_url":"file:///etc/passwd"}"#,
        r#"invalid browser.start_url "file:///etc/passwd": expected http://..., https://... or about:blank"#,
    );
    check(
        r#"{"viewport":[1280,10]}"#,
        r#"invalid browser.viewport "[1280, 10]": expected a width and a height from 64 to 8192"#,
    );
    check(r#"{"device_scale":9}"#, r#"invalid browser.device_scale "9": expected 0.25 to 4"#);
    check(r#"{"settle_max":"2m"}"#, r#"invalid browser.settle_max "2m": expected 50ms to 60s"#);
    check(
        r#"{"locale":"en US"}"#,
        r#"invalid browser.locale "en US": expected a language and region, such as `en-US`"#,
    );
    check(
        r#"{"network":{"allow":["a.org"]}}"#,
        r#"invalid browser.network.allow "a.org": expected HOST:PORT, *.DOMAIN:PORT, *:PORT, ADDRESS/BITS:PORT or service:NAME"#,
    );
    check(
        r#"{"deterministic":{"step":"2h"}}"#,
        r#"invalid browser.deterministic.step "2h": expected 0ms to 1h"#,
    );
    check(
        r#"{"deterministic":{"misses":"live"}}"#,
        r#"invalid browser.deterministic.misses "live": expected an `archive` that may miss a request"#,
    );
    check(
        r#"{"tools":{"points":false,"references":false}}"#,
        r#"invalid browser.tools "{ points = false, references = false }": expected at least one of them to be true"#,
    );
}

#[test]
fn an_experiment_wins_and_its_network_is_a_bound() {
    let experiment = file(r#"{"viewport":[800,600],"network":{"allow":["a.org:443","b.org:80"]}}"#);
    let task = file(
        r#"{"start_url":"https://a.org/","viewport":[100,100],"network":{"allow":["b.org:80","c.org:80"]}}"#,
    );
    let spec = BrowserSpec::resolve(&experiment, &task).unwrap();
    assert_eq!((spec.viewport, spec.start_url.as_str()), ([800, 600], "https://a.org/"));
    assert_eq!(spec.network, Network::Allow(vec!["b.org:80".to_owned()]));
    let alone = BrowserSpec::resolve(&BrowserFile::default(), &task).unwrap();
    assert_eq!(alone.network, Network::None, "the experiment names no network");
}

#[test]
fn processes_without_a_sandbox_are_not_shared() {
    let config = BrowserConfig { no_sandbox: true, contexts_max: Some(8), ..BrowserConfig::default() };
    assert_eq!(config.process().unwrap().contexts_max, 1);
    let config = BrowserConfig { contexts_max: Some(0), ..BrowserConfig::default() };
    let error = config.process().unwrap_err().to_string();
    assert_eq!(error, r#"invalid browser.contexts_max "0": expected 1 to 256"#);
}

#[test]
fn a_network_is_said_of_the_sandbox_that_the_browser_runs_in() {
    let resolve = |experiment: &str, task: &str| {
        BrowserSpec::resolve(&file(experiment), &file(task))
            .map(|spec| spec.sandbox)
            .map_err(|error| error.key)
    };
    let (own, network) = (r#"{"sandbox":"main"}"#, r#"{"network":{"allow":["a.org:443"]}}"#);
    assert_eq!(resolve(own, network), Err("sandbox"), "that of the task would count for nothing");
    assert_eq!(resolve(network, own), Ok(Some("main".to_owned())), "it is of the browsers of other tasks");
    assert_eq!(resolve(r#"{"sandbox":"main","network":"none"}"#, "{}"), Err("sandbox"));

    let check = |start: &str, network: Network| {
        let text = format!(r#"{{"sandbox":"main","start_url":"{start}"}}"#);
        let spec = BrowserSpec::resolve(&BrowserFile::default(), &file(&text)).unwrap();
        let sandbox = SandboxSpec { user_namespaces: true, network, ..SandboxSpec::default() };
        spec.check_sandbox(false, |_| Ok(sandbox)).err()
    };
    let allow = |rule: &str| Network::Allow(vec![rule.to_owned()]);
    let (page, service) = ("http://127.0.0.1:8000/", "http://mail.espalier.internal/?sid={sid}");
    assert_eq!(
        check(page, Network::None).as_deref(),
        Some(
            r#"browser.sandbox "main": pages could reach nothing, as that sandbox has no network; set `network = "loopback"`, or a list, in `[sandbox]` of the experiment"#
        )
    );
    assert_eq!(check(page, Network::Loopback), None);
    assert_eq!(check(page, allow("a.org:443")), None);
    assert_eq!(
        check(service, Network::Loopback).as_deref(),
        Some(
            r#"browser.start_url "http://mail.espalier.internal/?sid={sid}": the sandbox "main" that the browser runs in does not reach it; add "service:mail" to `network.allow` in `[sandbox]` of the experiment"#
        )
    );
    assert_eq!(check(service, allow("service:Mail")), None);
}

#[test]
fn a_start_page_of_a_service_finds_its_session() {
    let check = |start: &str| {
        let spec = file(&format!(r#"{{"start_url":"{start}"}}"#));
        BrowserSpec::resolve(&BrowserFile::default(), &spec)
            .unwrap()
            .check_services(["mail"].into_iter())
            .err()
    };
    for fine in [
        "http://mail.espalier.internal/?sid={sid}",
        "http://MAIL.espalier.internal:80/?sid={sid}#inbox",
        "http://mail.espalier.internal./?sid={sid}",
        "http://espalier.internal.example.org/",
        "http://example.org/?at=http://shop.espalier.internal",
    ] {
        assert_eq!(check(fine), None, "{fine}");
    }
    let elsewhere = "services are at http://mail.espalier.internal/, at no other scheme or port";
    for (start, expect) in [
        ("https://mail.espalier.internal/?sid={sid}", elsewhere),
        ("http://mail.espalier.internal:8080/?sid={sid}", elsewhere),
        ("http://mail.espalier.internal/", "add the session's id, as in `/?sid={sid}`"),
        ("http://ann@shop.espalier.internal/?sid={sid}", "the task has no service \"shop\""),
    ] {
        let told = check(start).unwrap_or_default();
        assert!(told.contains(expect), "{start}: {told}");
    }
}
