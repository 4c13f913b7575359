//! Credentials from the files that Docker and Podman keep, and from the helpers that these name. None is ever written or
//! logged.

use crate::ImageError;
use base64::Engine as _;
use oci_client::Reference;
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long a helper may think: some ask a keyring, none should ask a person.
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of a helper's answer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// What Docker calls its own registry in these files.
const HUB: &str = "https://index.docker.io/v1/";

/// Where this user's credentials would be, the first that has some counts: `$DOCKER_CONFIG/config.json` or
/// `~/.docker/config.json`, `$REGISTRY_AUTH_FILE`, `$XDG_RUNTIME_DIR/containers/auth.json`, `~/.config/containers/auth.json`.
pub fn credential_files() -> Vec<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = folder("HOME");
    let below = |folder: &Option<PathBuf>, rest: &str| folder.as_ref().map(|folder| folder.join(rest));
    let docker = folder("DOCKER_CONFIG").or_else(|| below(&home, ".docker"));
    let files = [
        below(&docker, "config.json"),
        folder("REGISTRY_AUTH_FILE"),
        below(&folder("XDG_RUNTIME_DIR"), "containers/auth.json"),
        below(&home, ".config/containers/auth.json"),
    ];
    files.into_iter().flatten().collect()
}

/// What is shown to a registry.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) auth: RegistryAuth,
    /// Who that is and who said so, for messages.
    pub(crate) shown: String,
}

impl Credentials {
    /// What the files have for the image's registry.
    pub(crate) async fn find(files: &[PathBuf], image: &Reference) -> Result<Credentials, ImageError> {
        for path in files {
            let text = match tokio::fs::read(path).await {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                text => text.map_err(|error| refused(image, path, &error.to_string()))?,
            };
            let file: ConfigFile =
                serde_json::from_slice(&text).map_err(|error| refused(image, path, &error.to_string()))?;
            if let Some(auth) = file.find(path, image).await? {
                let who = match &auth {
                    RegistryAuth::Basic(user, _) => format!("to {user:?}"),
                    _ => "with its token".to_owned(),
                };
                return Ok(Credentials { auth, shown: format!("{who} of {}", path.display()) });
            }
        }
        Ok(Credentials { auth: RegistryAuth::Anonymous, shown: "without credentials".to_owned() })
    }
}

fn refused(image: &Reference, place: &Path, why: &str) -> ImageError {
    ImageError::Credentials {
        registry: image.registry().to_owned(),
        place: place.display().to_string(),
        why: why.to_owned(),
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ConfigFile {
    auths: BTreeMap<String, Entry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl ConfigFile {
    async fn find(&self, path: &Path, image: &Reference) -> Result<Option<RegistryAuth>, ImageError> {
        let host = host(image);
        if let Some(helper) = self.cred_helpers.get(host).or_else(|| self.cred_helpers.get(image.registry()))
        {
            return ask(helper, image).await;
        }
        if let Some(entry) = self.entry(image)
            && let Some(auth) = entry.read().map_err(|why| refused(image, path, why))?
        {
            return Ok(Some(auth));
        }
        match self.creds_store.as_deref().filter(|name| !name.is_empty()) {
            Some(helper) => ask(helper, image).await,
            None => Ok(None),
        }
    }

    /// The entry that says most of the image: Podman writes whole repositories, Docker hosts with or without a scheme.
    fn entry(&self, image: &Reference) -> Option<&Entry> {
        let mut name = format!("{}/{}", host(image), image.repository());
        loop {
            let found = self.auths.iter().find(|(key, _)| bare(key) == name);
            if let Some((_, entry)) = found {
                return Some(entry);
            }
            name.truncate(name.rfind('/')?);
        }
    }
}

/// One name for the registry that has several.
fn host(image: &Reference) -> &str {
    match image.registry() {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        other => other,
    }
}

fn bare(key: &str) -> &str {
    let key = key.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let key = key.strip_suffix("/v1").or_else(|| key.strip_suffix("/v2")).unwrap_or(key);
    if key == "index.docker.io" || key == "registry-1.docker.io" { "docker.io" } else { key }
}

impl Entry {
    fn read(&self) -> Result<Option<RegistryAuth>, &'static str> {
        let full = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(token) = full(&self.registrytoken) {
            return Ok(Some(RegistryAuth::Bearer(token)));
        }
        if full(&self.identitytoken).is_some() {
            return Err("it holds an identity token, log in with a password or an access token instead");
        }
        if let Some(auth) = full(&self.auth) {
            let bytes = base64::engine::general_purpose::STANDARD.decode(auth.trim()).ok();
            let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            let text = text.ok_or("`auth` is not base64-encoded text")?;
            let (user, password) = text.split_once(':').ok_or("`auth` is not USER:PASSWORD")?;
            return Ok(Some(RegistryAuth::Basic(
                user.to_owned(),
                password.trim_end_matches('\0').to_owned(),
            )));
        }
        let pair = full(&self.username).zip(full(&self.password));
        Ok(pair.map(|(user, password)| RegistryAuth::Basic(user, password)))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// Runs `docker-credential-NAME get`; it is killed when this is dropped or takes too long.
async fn ask(name: &str, image: &Reference) -> Result<Option<RegistryAuth>, ImageError> {
    let program = format!("docker-credential-{name}");
    let failed = |why: &str| refused(image, Path::new(&program), why);
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        return Err(failed("not a valid name of a helper"));
    }
    let server = if host(image) == "docker.io" { HUB } else { image.registry() };
    let exchange = async {
        let mut child = tokio::process::Command::new(&program)
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        if let Some(mut stdin) = stdin {
            // A helper that answers without reading is fine.
            let _ = stdin.write_all(server.as_bytes()).await;
        }
        let mut answer = Vec::new();
        if let Some(stdout) = stdout {
            stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
        }
        Ok::<_, std::io::Error>((child.wait().await?, answer))
    };
    let (status, answer) = match tokio::time::timeout(HELPER_TIMEOUT, exchange).await {
        Ok(done) => done.map_err(|error| failed(&error.to_string()))?,
        Err(_) => return Err(failed(&format!("no answer within {} s", HELPER_TIMEOUT.as_secs()))),
    };
    if !status.success() {
        let said = String::from_utf8_lossy(&answer).trim().to_owned();
        if said.contains("credentials not found") {
            return Ok(None);
        }
        return Err(failed(&format!("{status}: {said}")));
    }
    let answer: Answer = serde_json::from_slice(&answer).map_err(|error| failed(&error.to_string()))?;
    match answer.username.as_str() {
        "" if answer.secret.is_empty() => Ok(None),
        "<token>" => {
            Err(failed("it holds an identity token, log in with a password or an access token instead"))
        }
        _ => Ok(Some(RegistryAuth::Basic(answer.username, answer.secret))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_entry_that_says_most_of_an_image_counts() {
        let file =
            |auths: &str| -> ConfigFile { serde_json::from_str(&format!(r#"{{"auths":{auths}}}"#)).unwrap() };
        let check = async |auths: &str, image: &str, expect: Result<Option<(&str, &str)>, &str>| {
            let found = file(auths).find(Path::new("f"), &image.parse().unwrap()).await;
            let found = found.map_err(|error| error.to_string());
            let pair =
                |(user, password): (&str, &str)| RegistryAuth::Basic(user.to_owned(), password.to_owned());
            assert_eq!(found, expect.map(|found| found.map(pair)).map_err(str::to_owned), "{auths}");
        };
        let hub = r#"{"https://index.docker.io/v1/":{"auth":"YTpiOmM="}}"#;
        check(hub, "debian:12", Ok(Some(("a", "b:c")))).await;
        check(hub, "ghcr.io/a/b", Ok(None)).await;
        let two = r#"{"r.org":{"username":"u","password":"p"},"r.org/team":{"username":"t","password":"p"}}"#;
        check(two, "r.org/team/a", Ok(Some(("t", "p")))).await;
        check(two, "r.org/teams/a", Ok(Some(("u", "p")))).await;
        check(r#"{"r.org":{}}"#, "r.org/a", Ok(None)).await;
        check(r#"{"https://r.org:5000/v2/":{"auth":"YTpi"}}"#, "r.org:5000/a", Ok(Some(("a", "b")))).await;
        let bad = "credentials for r.org: f: `auth` is not base64-encoded text";
        check(r#"{"r.org":{"auth":"*"}}"#, "r.org/a", Err(bad)).await;
    }
}
