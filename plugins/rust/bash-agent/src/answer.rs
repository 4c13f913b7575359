//! The commands of an answer.

use serde_json::Value;

/// The command of the one block with this word behind its fence, or what is wrong.
pub fn fenced(text: &str, fence: &str) -> Result<String, String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(word) = line.strip_prefix("```") else { continue };
        let wanted = word.trim() == fence;
        let body: Vec<&str> = lines.by_ref().take_while(|line| line.trim_end() != "```").collect();
        if wanted {
            blocks.push(body.join("\n"));
        }
    }
    match blocks.len() {
        1 if blocks[0].trim().is_empty() => Err("The block of your answer is empty".to_owned()),
        1 => Ok(blocks.remove(0)),
        0 => Err(format!("There was no ```{fence} block in your answer")),
        count => Err(format!("There were {count} ```{fence} blocks in your answer")),
    }
}

/// The command of a call of the tool, or what is wrong.
pub fn called(name: &str, arguments: &str) -> Result<String, String> {
    if name != "bash" {
        return Err(format!("There is no tool `{name}`"));
    }
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
    match arguments["command"].as_str() {
        Some(command) if !command.trim().is_empty() => Ok(command.to_owned()),
        _ => Err("The argument `command` is missing".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_block_counts() {
        let check = |text: &str, expect: Result<&str, &str>| {
            assert_eq!(fenced(text, "sh").as_deref().map_err(|text| &**text), expect, "{text:?}");
        };
        check("I look.\n```sh\nls -l\npwd\n```\n", Ok("ls -l\npwd"));
        check("```sh\nls", Ok("ls"));
        check("```text\n```sh\n```\n```sh\nls\n```", Ok("ls"));
        check("ls", Err("There was no ```sh block in your answer"));
        check("```bash\nls\n```", Err("There was no ```sh block in your answer"));
        check("```sh\na\n```\n```sh\nb\n```", Err("There were 2 ```sh blocks in your answer"));
        check("```sh\n \n```", Err("The block of your answer is empty"));
    }

    #[test]
    fn a_call_names_the_tool_and_its_command() {
        assert_eq!(called("bash", r#"{"command":"ls"}"#).unwrap(), "ls");
        assert_eq!(called("python", "{}").unwrap_err(), "There is no tool `python`");
        for arguments in ["{}", r#"{"command":" "}"#, r#"{"command":3}"#, "nonsense"] {
            assert_eq!(called("bash", arguments).unwrap_err(), "The argument `command` is missing");
        }
    }
}
