//! JavaScript that runs in the isolated world of each frame: queries, roles and names, states, actions on elements, snapshots.
//! This module only puts the files together; it never evaluates them. What the object offers is listed in `injected/api.js`.

/// An expression that evaluates to the object `injected`. The files share one scope; their order matters for what runs at once.
pub(crate) const SOURCE: &str = concat!(
    "(() => {\n\"use strict\";\n",
    include_str!("injected/dom.js"),
    include_str!("injected/text.js"),
    include_str!("injected/visibility.js"),
    include_str!("injected/roles.js"),
    include_str!("injected/aria.js"),
    include_str!("injected/names.js"),
    include_str!("injected/css.js"),
    include_str!("injected/query.js"),
    include_str!("injected/states.js"),
    include_str!("injected/actions.js"),
    include_str!("injected/wait.js"),
    include_str!("injected/outline.js"),
    include_str!("injected/snapshot.js"),
    include_str!("injected/agent.js"),
    include_str!("injected/clipboard.js"),
    include_str!("injected/api.js"),
    "return injected;\n})()\n",
);
