//! `espalier plugin new`, `plugin build`, `plugin sdk` and `espalier wit`: projects of plugins, outside of the repository.

use super::Context;
use super::step::Step;
use crate::cli::exit::Exit;
use crate::installed;
use crate::output::problem::Problem;
use crate::output::text::{bytes, duration, harmless, one_line};
use crate::project::{build_line, shown};
use clap::{Args, ValueEnum};
use espalier_authoring::project::{MANIFEST, Manifest};
use espalier_authoring::{
    BuildError, Kind, Language, New, NewError, Project, ProjectError, Sources, template,
};
use espalier_plugin::{World, digest_of, names_of};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// `espalier plugin new`
#[derive(Debug, Args)]
pub struct PluginNewArgs {
    /// Name of the plugin: lower-case letters, digits and hyphens.
    pub name: String,
    /// What the plugin is.
    #[arg(long, value_enum)]
    pub kind: Option<KindArg>,
    /// The language it is written in.
    #[arg(long, value_enum)]
    pub lang: Option<LanguageArg>,
    /// The folder to write to, new or empty; default: the name.
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// `espalier plugin build`
#[derive(Debug, Args)]
pub struct PluginBuildArgs {
    /// A folder of the project.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
}

/// `espalier plugin sdk`
#[derive(Debug, Args)]
pub struct PluginSdkArgs {
    /// The language of the SDK.
    #[arg(long, value_enum)]
    pub lang: Option<LanguageArg>,
    /// The folder to write to. An SDK that is there is replaced.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// `espalier wit`
#[derive(Debug, Args)]
pub struct WitArgs {
    /// The folder to write to; created if it is missing.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// The kinds of plugins, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KindArg {
    /// Drives the turns of a rollout.
    Harness,
    /// A small simulated world.
    Environment,
    /// Scores one rollout.
    Reward,
    /// Scores the rollouts of a group together.
    GroupReward,
    /// Scores by a model.
    Judge,
    /// Makes and adapts tasks.
    TaskGenerator,
}

/// The languages of projects, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LanguageArg {
    /// cargo, for wasm32-unknown-unknown.
    Rust,
    /// npm, esbuild and componentize-qjs.
    #[value(name = "javascript")]
    JavaScript,
    /// The same, with types.
    #[value(name = "typescript")]
    TypeScript,
    /// componentize-py.
    Python,
    /// Go's own toolchain.
    Go,
    /// Zig's C compiler.
    C,
}

impl From<KindArg> for Kind {
    fn from(kind: KindArg) -> Kind {
        match kind {
            KindArg::Harness => Kind::Harness,
            KindArg::Environment => Kind::Environment,
            KindArg::Reward => Kind::Reward,
            KindArg::GroupReward => Kind::GroupReward,
            KindArg::Judge => Kind::Judge,
            KindArg::TaskGenerator => Kind::TaskGenerator,
        }
    }
}

impl From<LanguageArg> for Language {
    fn from(language: LanguageArg) -> Language {
        match language {
            LanguageArg::Rust => Language::Rust,
            LanguageArg::JavaScript => Language::JavaScript,
            LanguageArg::TypeScript => Language::TypeScript,
            LanguageArg::Python => Language::Python,
            LanguageArg::Go => Language::Go,
            LanguageArg::C => Language::C,
        }
    }
}

pub(super) fn new(context: &mut Context, args: &PluginNewArgs) -> Result<Exit, Problem> {
    let kind = args.kind.ok_or_else(|| missing("--kind", &Kind::ALL.map(Kind::as_str)));
    let language = args.lang.ok_or_else(|| missing("--lang", &Language::ALL.map(Language::as_str)));
    let project = New { name: &args.name, kind: kind?.into(), language: language?.into() };
    let folder = args.dir.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    let files = project.write(&sources()?, &folder)?;
    let mut written: Vec<String> = files.iter().map(|file| folder.join(file).display().to_string()).collect();
    written.push(format!("{}/", folder.join("sdk").display()));
    if context.common.json {
        context.out.json(&json!({
            "name": args.name, "kind": project.kind.as_str(), "language": project.language.as_str(), "files": written,
        }))?;
        return Ok(Exit::Done);
    }
    for file in written {
        context.out.line(&format!("wrote {file}"))?;
    }
    let inside =
        if folder == Path::new(".") { String::new() } else { format!("cd {} && ", folder.display()) };
    let installed = match project.language {
        // Its compiler is a package of PyPI.
        Language::Python | Language::C => {
            "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt && "
        }
        _ => "",
    };
    context.screen.say(&format!("next: {inside}{installed}espalier plugin build && espalier plugin test"));
    Ok(Exit::Done)
}

pub(super) async fn build(context: &mut Context, args: PluginBuildArgs) -> Result<Exit, Problem> {
    let project = Project::find(&args.dir)?;
    note_old_sdk(context, &project);
    let began = Instant::now();
    let component = build_project(context, &project).await?;
    let took = began.elapsed();
    let wasm =
        std::fs::read(&component).map_err(|source| BuildError::File { path: component.clone(), source })?;
    check_kind(&project, &wasm)?;
    let shown = shown(&component);
    let manifest = &project.manifest;
    if context.common.json {
        context.out.json(&json!({
            "name": manifest.name,
            "kind": manifest.kind.as_str(),
            "language": manifest.language.as_str(),
            "component": shown,
            "size_bytes": wasm.len(),
            "digest": digest_of(&wasm),
            "seconds": took.as_secs_f64(),
        }))?;
        return Ok(Exit::Done);
    }
    context.out.line(&format!("built {shown} ({}) in {}", bytes(wasm.len() as u64), duration(took)))?;
    Ok(Exit::Done)
}

/// Builds a project; what a compiler prints when it refuses stands on standard error.
pub(super) async fn build_project(context: &Context, project: &Project) -> Result<PathBuf, Problem> {
    let Manifest { name, language, .. } = &project.manifest;
    let step = Step::begin(context, &format!("building {name} ({})", language.as_str()));
    let (screen, of) = (context.screen.clone(), project.clone());
    let built = tokio::task::spawn_blocking(move || {
        espalier_authoring::build::build(&of, &mut |text| screen.say(&harmless(text)))
    });
    let built = built.await.map_err(|error| Problem::of(Exit::Internal, &error))?;
    drop(step);
    match built {
        Ok(built) => Ok(built.component),
        Err(BuildError::Failed { program, output }) if !context.common.json => {
            context.screen.say(&harmless(&output));
            Err(Problem::new(Exit::Negative, format!("{program} failed; nothing was built")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Says so where the project's copy of the SDK is older than this program.
pub(super) fn note_old_sdk(context: &Context, project: &Project) {
    let sdk = project.folder.join("sdk");
    let version = template::version_of(&sdk).filter(|version| template::is_older(version));
    if let Some(version) = version.filter(|_| !context.common.json) {
        context.screen.say(&format!(
            "note: {} is the SDK of espalier {}, and this is {}; renew it: espalier plugin sdk --lang {} --out {}",
            shown(&sdk),
            one_line(&version),
            template::VERSION,
            project.manifest.language.as_str(),
            shown(&sdk),
        ));
    }
}

/// The component that a project has built.
pub(super) fn built(project: &Project) -> Result<PathBuf, Problem> {
    let output = project.output();
    if output.is_file() {
        return Ok(output);
    }
    let text = if output.is_dir() {
        format!("{} is a folder, not a component", shown(&output))
    } else {
        format!("{} is not built: there is no {}", project.manifest.name, shown(&output))
    };
    let hint = if output.is_dir() {
        format!("remove it, then {}", build_line(project))
    } else {
        build_line(project)
    };
    Err(Problem::new(Exit::Input, text).hint(hint))
}

/// Refuses a component of another kind than the manifest says.
fn check_kind(project: &Project, wasm: &[u8]) -> Result<(), Problem> {
    let exports = names_of(wasm).unwrap_or_default().exports;
    let has = |world: &World| exports.iter().any(|export| export.split('@').next() == Some(world.export()));
    let kind = project.manifest.kind;
    match World::ALL.iter().find(|world| has(world)) {
        Some(world) if world.as_str() != kind.world() => Err(Problem::new(
            Exit::Negative,
            format!(
                "{} is a {world}; {MANIFEST} says kind = \"{}\"",
                shown(&project.output()),
                kind.as_str()
            ),
        )
        .hint(format!("change `kind` in {MANIFEST}, or what {} exports", project.entry().display()))),
        _ => Ok(()),
    }
}

pub(super) fn sdk(context: &mut Context, args: &PluginSdkArgs) -> Result<Exit, Problem> {
    let language = args.lang.ok_or_else(|| missing("--lang", &Language::ALL.map(Language::as_str)))?.into();
    template::refresh_sdk(&sources()?, language, &args.out)?;
    wrote(context, &args.out)
}

pub(super) fn wit(context: &mut Context, args: &WitArgs) -> Result<Exit, Problem> {
    template::write_wit(&sources()?.wit, &args.out)?;
    wrote(context, &args.out)
}

fn wrote(context: &mut Context, folder: &Path) -> Result<Exit, Problem> {
    let folder = folder.display().to_string();
    if context.common.json {
        context.out.json(&json!({ "folder": folder }))?;
    } else {
        context.out.line(&format!("wrote {folder}"))?;
    }
    Ok(Exit::Done)
}

/// What the installation has for projects.
fn sources() -> Result<Sources, Problem> {
    installed::sources()
        .ok_or_else(|| Problem::new(Exit::Unavailable, "this program is not installed").hint(FROM_SOURCE))
}

const FROM_SOURCE: &str = "it comes with an installation; from source, run `make build`";

/// An argument that must be given, with what it may be.
fn missing(argument: &str, values: &[&str]) -> Problem {
    Problem::new(Exit::Input, format!("{argument} is missing"))
        .hint(format!("give one of: {argument} {}", values.join(", ")))
}

impl From<NewError> for Problem {
    fn from(error: NewError) -> Problem {
        let problem = |exit| Problem::of(exit, &error);
        match &error {
            NewError::Name(_) => problem(Exit::Input),
            NewError::Occupied { .. } => problem(Exit::Input).hint("name another folder: --dir DIR"),
            NewError::NotAnSdk { .. } => {
                problem(Exit::Input).hint("name the folder `sdk` of a project in that language, or a new one")
            }
            NewError::NotOfTheSdk { .. } => {
                problem(Exit::Input).hint("move them, or write the SDK to another folder")
            }
            NewError::NotPlain { .. } => problem(Exit::Input).hint("remove it, or name another folder"),
            NewError::Incomplete { .. } => problem(Exit::Unavailable).hint(FROM_SOURCE),
            NewError::File { .. } => problem(Exit::Unavailable),
        }
    }
}

impl From<ProjectError> for Problem {
    fn from(error: ProjectError) -> Problem {
        let hint = match &error {
            ProjectError::Missing { .. } => {
                Some("`espalier plugin new NAME --kind KIND --lang LANG` writes a project")
            }
            ProjectError::Read { .. } => None,
            ProjectError::Invalid { .. } => {
                Some("a project's README.md explains its files; docs/authoring.md too")
            }
        };
        Problem::of(Exit::Input, &error).hint_if(hint.map(str::to_owned))
    }
}

impl From<BuildError> for Problem {
    fn from(error: BuildError) -> Problem {
        match &error {
            BuildError::Missing { line, .. } => {
                Problem::of(Exit::Unavailable, &error).hint(format!("run: {line}"))
            }
            BuildError::Failed { program, output } => Problem {
                notes: output.lines().map(str::to_owned).collect(),
                ..Problem::new(Exit::Negative, format!("{program} failed; nothing was built"))
            },
            BuildError::Slow { runs_code: true, .. } => Problem::of(Exit::Negative, &error)
                .hint("code outside of functions runs when the component is built: does it end?"),
            BuildError::Slow { .. } | BuildError::File { .. } => Problem::of(Exit::Unavailable, &error),
            BuildError::Source { .. } | BuildError::Component { .. } => Problem::of(Exit::Negative, &error),
        }
    }
}
