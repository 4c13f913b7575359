//! Components that would take the machine's memory or time to compile. Each is refused by a bound before it is compiled, or ends
//! with its compiler, which is a process of its own.

use super::{Fixture, Ran};
use espalier_plugin::{Compiler, CompilerProcess, PluginError, PluginHost, PluginHostConfig, bounds};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// For what has to happen, and does so at once on a machine with nothing else to do.
const BOUND: Duration = Duration::from_secs(60);
const END: u8 = 0x0b;

fn leb(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            bytes.push(byte);
            return bytes;
        }
        bytes.push(byte | 0x80);
    }
}

fn with_length(bytes: &[u8]) -> Vec<u8> {
    [&leb(bytes.len())[..], bytes].concat()
}

fn section(id: u8, content: &[u8]) -> Vec<u8> {
    [&[id][..], &with_length(content)].concat()
}

/// A section of so many items.
fn items(id: u8, count: usize, item: &[u8]) -> Vec<u8> {
    section(id, &[leb(count), item.repeat(count)].concat())
}

fn module(sections: &[Vec<u8>]) -> Vec<u8> {
    [b"\0asm\x01\0\0\0".to_vec(), sections.concat()].concat()
}

/// A type without parameters, and functions of it with these bodies, without their locals and their end.
fn functions(bodies: &[Vec<u8>]) -> Vec<u8> {
    let code: Vec<Vec<u8>> =
        bodies.iter().map(|body| with_length(&[&[0][..], body, &[END]].concat())).collect();
    let code = section(10, &[leb(bodies.len()), code.concat()].concat());
    module(&[items(1, 1, b"\x60\0\0"), items(3, bodies.len(), b"\0"), code])
}

/// `i32.const 0; br_if 0`, so often.
fn branches(count: usize) -> Vec<u8> {
    [0x41, 0, 0x0d, 0].repeat(count)
}

fn component(sections: &[Vec<u8>]) -> Vec<u8> {
    [b"\0asm\x0d\0\x01\0".to_vec(), sections.concat()].concat()
}

/// A harness in name, with these sections behind.
fn plugin(sections: &[Vec<u8>]) -> Vec<u8> {
    let instance = items(5, 1, b"\x01\0");
    let exports = ["espalier:base/configurable@0.1.0", "espalier:plugin/harness@0.1.0"]
        .map(|name| section(11, &[&[1, 0][..], &with_length(name.as_bytes()), &[5, 0, 0]].concat()));
    component(&[&[instance][..], &exports, sections].concat())
}

/// One with these core modules.
fn of_modules(modules: &[Vec<u8>]) -> Vec<u8> {
    plugin(&modules.iter().map(|module| section(1, module)).collect::<Vec<_>>())
}

fn nested(depth: usize) -> Vec<u8> {
    (0..depth).fold(component(&[]), |inner, _| component(&[section(4, &inner)]))
}

/// Each component makes two instances of the one before: as many instances as two to that power.
fn doubling(power: usize) -> Vec<u8> {
    let mut sections = vec![section(4, &component(&[]))];
    for before in 0..power {
        // (alias outer 1 BEFORE (component)), twice (instantiate 0).
        let alias = section(6, &[&[1, 4, 2, 1][..], &leb(before)].concat());
        sections.push(section(4, &component(&[alias, items(5, 2, b"\0\0\0")])));
    }
    sections.push(section(5, &[&[1, 0][..], &leb(power), &[0]].concat()));
    plugin(&sections)
}

/// Name, component, and what is said of it.
fn bombs() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let nop = |count: usize| vec![1u8; count];
    let many_branches = functions(&vec![branches(90_000); 24]);
    let ty = |params: usize| [&[0x60][..], &with_length(&vec![0x7f; params]), &[0]].concat();
    vec![
        (
            "functions",
            of_modules(&[functions(&vec![Vec::new(); 900_000])]),
            "900000 functions in core module 1",
        ),
        (
            "functions of many modules",
            of_modules(&vec![functions(&vec![Vec::new(); 9_000]); 100]),
            "72000 functions in core module 8",
        ),
        (
            "branches",
            of_modules(&[functions(&[branches(500_000)])]),
            "500000 branches and blocks of one function in function 0 of core module 1",
        ),
        (
            "a branch table",
            of_modules(&[functions(&[[&[0x41, 0, 0x0e][..], &leb(900_000), &[0; 900_001]].concat()])]),
            "900001 branches and blocks of one function",
        ),
        (
            "nested blocks",
            of_modules(&[functions(&[[b"\x02\x40".repeat(100_000), vec![END; 100_000]].concat()])]),
            "100000 nested blocks of one function",
        ),
        ("a long function", of_modules(&[functions(&[nop(7_000_000)])]), "7000002 bytes of one function"),
        (
            "code",
            of_modules(&[functions(&vec![nop(1 << 20); 60])]),
            "bytes of code in function 47 of core module 1",
        ),
        (
            "branches of many functions",
            of_modules(&[many_branches]),
            "2160000 branches and blocks in function 23",
        ),
        (
            "locals",
            of_modules(&[module(&[
                items(1, 1, b"\x60\0\0"),
                items(3, 1, b"\0"),
                section(
                    10,
                    &[&[1][..], &with_length(&[&[1][..], &leb(50_000), &[0x7f, END]].concat())].concat(),
                ),
            ])]),
            "50000 locals of one function",
        ),
        (
            "parameters",
            of_modules(&[module(&[items(1, 1, &ty(1000))])]),
            "1000 parameters and results of one type",
        ),
        (
            "parameters of many types",
            of_modules(&[module(&[items(1, 8_000, &ty(250))])]),
            "65750 parameters and results of core types",
        ),
        ("types", of_modules(&[module(&[items(1, 900_000, &ty(0))])]), "8193 types of core functions"),
        (
            "imports",
            of_modules(&[module(&[items(1, 1, &ty(0)), items(2, 900_000, b"\0\0\0\0")])]),
            "900000 imports, exports, globals, tables and memories of core modules",
        ),
        (
            "globals",
            of_modules(&[module(&[items(6, 900_000, b"\x7f\0\x41\0\x0b")])]),
            "900000 imports, exports, globals",
        ),
        (
            "memories",
            of_modules(&[module(&[items(5, 90_000, b"\0\x01")])]),
            "90000 imports, exports, globals",
        ),
        (
            "elements",
            of_modules(&[module(&[section(
                9,
                &[&[1, 0, 0x41, 0, END][..], &leb(900_000), &[0; 900_000]].concat(),
            )])]),
            "900000 elements",
        ),
        (
            "element segments",
            of_modules(&[module(&[items(9, 90_000, b"\0\x41\0\x0b\0")])]),
            "90000 element segments",
        ),
        (
            "data segments",
            of_modules(&[module(&[items(5, 1, b"\0\x01"), items(11, 90_000, b"\0\x41\0\x0b\0")])]),
            "90000 data segments",
        ),
        ("modules", of_modules(&vec![module(&[]); 900]), "257 core modules"),
        ("components", plugin(&vec![section(4, &component(&[])); 900]), "129 nested components"),
        ("nested components", plugin(&[section(4, &nested(90))]), "17 levels of nested components"),
        (
            "instances",
            plugin(&[items(5, 60_000, b"\x01\0")]),
            "imports, exports, aliases, instances and adapters of components",
        ),
        (
            "aliases",
            plugin(&[items(7, 1, b"\x79"), items(6, 60_000, b"\x03\x02\0\0")]),
            "imports, exports, aliases, instances and adapters of components",
        ),
        ("types of components", plugin(&[items(7, 900_000, b"\x79")]), "900003 bytes of component types"),
        ("instances of instances", doubling(60), " to compile"),
    ]
}

fn check(fixture: &Fixture, file: &Path) -> Ran {
    fixture.run(&["plugin", "check", &file.display().to_string()])
}

#[test]
fn each_is_refused_by_the_bound_that_it_breaks() {
    let fixture = Fixture::new();
    for (name, bomb, said) in bombs() {
        let file = fixture.folder.path().join("bomb.wasm");
        fs::write(&file, &bomb).unwrap();
        let started = Instant::now();
        let ran = check(&fixture, &file);
        println!(
            "{name}: {} bytes, {:.2} s: {}",
            bomb.len(),
            started.elapsed().as_secs_f64(),
            ran.stderr.trim()
        );
        assert_eq!((ran.code, &ran.stdout[..]), (1, ""), "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains(said), "{name}: {}", ran.stderr);
        // The others are not even compiled.
        let compiled = said.ends_with("to compile");
        assert_eq!(ran.stderr.contains(", more than the limit of "), !compiled, "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains("hint: build it optimised"), "{name}: {}", ran.stderr);
    }
    // Its size is looked at before it is read.
    let file = fixture.folder.path().join("large.wasm");
    fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
    let ran = check(&fixture, &file);
    assert_eq!(ran.code, 1);
    assert!(
        ran.stderr.contains("has 1099511627776 bytes, more than the limit of 134217728"),
        "{}",
        ran.stderr
    );
}

async fn load(compiler: CompilerProcess, file: &Path) -> PluginError {
    let config = PluginHostConfig {
        cache_dir: None,
        compiler: Compiler::Process(compiler),
        guest_threads: 1,
        instances_max: 1,
        io: tokio::runtime::Handle::current(),
    };
    PluginHost::new(config).unwrap().load(file).await.unwrap_err()
}

/// As much as is let through, in as many branches as are let through.
fn heavy() -> Vec<u8> {
    let most = |what: &str| bounds().find(|(of, _)| *of == what).unwrap().1 as usize;
    let of_one = most("branches and blocks of one function") - 8;
    of_modules(&[functions(&vec![branches(of_one); most("branches and blocks") / of_one])])
}

#[tokio::test]
async fn a_compiler_out_of_memory_ends_alone() {
    let fixture = Fixture::new();
    let file = fixture.folder.path().join("heavy.wasm");
    fs::write(&file, heavy()).unwrap();
    let program = env!("CARGO_BIN_EXE_espalier").into();
    // Enough to start and to read it.
    let compiler =
        CompilerProcess { program, memory_bytes_max: 96 << 20, time_max: Duration::from_secs(600) };
    let error = load(compiler, &file).await;
    assert!(matches!(error, PluginError::TooLarge { .. }), "{error}");
    assert!(
        error.to_string().ends_with("heavy.wasm: takes more than 96 MiB of memory to compile"),
        "{error}"
    );
}

#[tokio::test]
async fn a_compiler_out_of_time_is_killed_and_reaped() {
    let fixture = Fixture::new();
    let program = fixture.write("compiler", "#!/bin/sh\necho $$ > \"$0.pid\"\nexec /bin/sleep 100000\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let file = fixture.folder.path().join("plugin.wasm");
    fs::write(&file, plugin(&[])).unwrap();
    let time_max = Duration::from_secs(2);
    let error = load(CompilerProcess { program, memory_bytes_max: 1 << 30, time_max }, &file).await;
    assert!(matches!(error, PluginError::TooLarge { .. }), "{error}");
    assert!(error.to_string().ends_with("plugin.wasm: takes more than 6 s to compile"), "{error}");
    let pid = fs::read_to_string(fixture.folder.path().join("compiler.pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

/// Not even one that is killed in the middle leaves its compiler.
#[test]
#[expect(clippy::disallowed_methods, reason = "there is no runtime here whose thread could be blocked")]
fn a_compiler_ends_with_the_engine() {
    let script = "exec 3<&0; \"$0\" plugin-compiler $$ 0 1000000000 1000 <&3 & echo $!; wait";
    let mut engine = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_espalier")])
        // Held open: the compiler waits for the rest of its component.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pid = String::new();
    BufReader::new(engine.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    let status = Path::new("/proc").join(pid.trim()).join("stat");
    let runs = || fs::read_to_string(&status).is_ok_and(|stat| !stat.contains(") Z "));
    // The last thing it does before it reads.
    let bound =
        || fs::read_to_string(status.with_file_name("oom_score_adj")).is_ok_and(|text| text == "1000\n");
    let until = Instant::now() + BOUND;
    while !bound() {
        assert!(runs() && Instant::now() < until, "no compiler");
        std::thread::sleep(Duration::from_millis(10));
    }
    engine.kill().unwrap();
    let held = engine.stdin.take();
    engine.wait().unwrap();
    let until = Instant::now() + BOUND;
    while runs() {
        assert!(Instant::now() < until, "the compiler outlives the engine");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(held);
}
