//! Users and groups from `/etc/passwd` and `/etc/group`: the binary is static and has no other way. Pure.

use crate::Reason;

/// Who a command runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub id: u32,
    /// Primary group.
    pub group: u32,
    /// All groups.
    pub groups: Vec<u32>,
    /// Name, where the user has one.
    pub name: Vec<u8>,
    /// Home folder; `/` where the user is not listed.
    pub home: Vec<u8>,
}

/// Finds `name`, `id`, `name:group` or `id:id` in the two files.
pub fn resolve(wanted: &str, passwd: &[u8], group: &[u8]) -> Result<User, (Reason, String)> {
    let (user, of_group) = match wanted.split_once(':') {
        Some((user, of_group)) => (user, Some(of_group).filter(|name| !name.is_empty())),
        None => (wanted, None),
    };
    let named = lines(passwd).find(|fields| fields.first() == Some(&user.as_bytes()) && fields.len() >= 6);
    let listed = named.or_else(|| {
        let id: u32 = user.parse().ok()?;
        lines(passwd).find(|fields| fields.len() >= 6 && number(fields[2]) == Some(id))
    });
    let mut found = match listed {
        Some(fields) => {
            let (Some(id), Some(group)) = (number(fields[2]), number(fields[3])) else {
                return Err((
                    Reason::Invalid,
                    format!("user `{user}`: no numeric ids in its line of /etc/passwd"),
                ));
            };
            User { id, group, groups: vec![], name: fields[0].to_vec(), home: fields[5].to_vec() }
        }
        None => match user.parse() {
            Ok(id) => User { id, group: 0, groups: vec![], name: vec![], home: b"/".to_vec() },
            Err(_) => return Err((Reason::NotFound, format!("user `{user}`: not in /etc/passwd"))),
        },
    };
    if let Some(of_group) = of_group {
        let named = lines(group).find(|fields| fields.first() == Some(&of_group.as_bytes()));
        let id = named.and_then(|fields| number(fields.get(2)?)).or_else(|| of_group.parse().ok());
        found.group = id.ok_or((Reason::NotFound, format!("group `{of_group}`: not in /etc/group")))?;
    }
    if found.id == u32::MAX || found.group == u32::MAX {
        // To the kernel it means: as it is.
        return Err((Reason::Invalid, format!("user `{wanted}`: 4294967295 is not a valid id")));
    }
    found.groups = vec![found.group];
    if !found.name.is_empty() && of_group.is_none() {
        let member = |fields: &Vec<&[u8]>| {
            fields
                .get(3)
                .is_some_and(|members| members.split(|byte| *byte == b',').any(|name| name == found.name))
        };
        let others: Vec<u32> = lines(group).filter(member).filter_map(|fields| number(fields[2])).collect();
        found.groups.extend(others.into_iter().filter(|id| *id != found.group));
    }
    Ok(found)
}

fn lines(file: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    file.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':').collect())
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/bash\nweb:x:33:33::/var/www:/bin/sh\nbad:x:a:b::/:\n";
    const GROUP: &[u8] = b"root:x:0:\nweb:x:33:\nstaff:x:50:root,web\nwheel:x:60:web\n";

    #[track_caller]
    fn check(wanted: &str, expect: Result<(u32, u32, &[u32], &str), &str>) {
        let found = resolve(wanted, PASSWD, GROUP);
        match (&found, expect) {
            (Ok(user), Ok((id, group, groups, home))) => {
                assert_eq!((user.id, user.group, &user.groups[..]), (id, group, groups));
                assert_eq!(user.home, home.as_bytes());
            }
            (Err((_, message)), Err(expect)) => assert_eq!(message, expect),
            _ => panic!("{wanted}: {found:?}"),
        }
    }

    #[test]
    fn names_numbers_and_groups() {
        check("web", Ok((33, 33, &[33, 50, 60], "/var/www")));
        check("33", Ok((33, 33, &[33, 50, 60], "/var/www")));
        check("web:staff", Ok((33, 50, &[50], "/var/www")));
        check("web:1234", Ok((33, 1234, &[1234], "/var/www")));
        check("web:", Ok((33, 33, &[33, 50, 60], "/var/www")));
        check("1000:1000", Ok((1000, 1000, &[1000], "/")));
        check("1000", Ok((1000, 0, &[0], "/")));
        check("nobody", Err("user `nobody`: not in /etc/passwd"));
        check("web:none", Err("group `none`: not in /etc/group"));
        check("bad", Err("user `bad`: no numeric ids in its line of /etc/passwd"));
        check("4294967295", Err("user `4294967295`: 4294967295 is not a valid id"));
        check("web:4294967295", Err("user `web:4294967295`: 4294967295 is not a valid id"));
        check("-1", Err("user `-1`: not in /etc/passwd"));
    }
}
