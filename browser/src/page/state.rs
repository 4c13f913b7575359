//! The frames of a page as Chromium's events tell them: addresses, documents, how far they are loaded, where their
//! scripts run. Changed by events only; decides nothing about time.

use crate::connection::Session;
use crate::protocol::{FrameInfo, FrameTreeInfo};
use crate::script::Place;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) type FrameId = Arc<str>;
pub(crate) type LoaderId = Arc<str>;

/// Documents of a frame that are remembered, so that who waits for one learns that another followed at once.
const LOADERS_KEPT: usize = 8;
/// Failed navigations of a frame that are remembered.
const FAILURES_KEPT: usize = 8;
/// How long a navigation that is asked for may take to begin; later it is taken for dropped.
const REQUEST_BOUND: Duration = Duration::from_millis(500);

/// How far a document is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoadState {
    /// The document's first bytes are here and its address is the page's.
    Commit,
    /// The document is parsed.
    DomContentLoaded,
    /// Its style sheets, images and frames are loaded, too.
    #[default]
    Load,
    /// Its frames have had no request under way for 500 ms.
    NetworkIdle,
}

/// Where scripts run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum World {
    /// That of the page's own scripts.
    Main,
    /// The library's own: the same document, other globals.
    Isolated,
}

/// How far a document is loaded, by loader.
#[derive(Debug, Default)]
struct Progress {
    loader: Option<LoaderId>,
    parsed: bool,
    loaded: bool,
    idle: bool,
}

/// A navigation that did not commit.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// The document it would have made.
    pub(crate) loader: Option<LoaderId>,
    pub(crate) url: String,
    pub(crate) reason: String,
    pub(crate) download: bool,
}

pub(crate) struct FrameState {
    pub(crate) id: FrameId,
    pub(crate) parent: Option<FrameId>,
    pub(crate) children: Vec<FrameId>,
    pub(crate) url: String,
    pub(crate) name: String,
    pub(crate) loader: Option<LoaderId>,
    /// The address that could not be reached, while an error page is shown in its place.
    pub(crate) unreachable: Option<String>,
    pub(crate) session: Arc<Session>,
    /// Documents that were committed since the frame is known.
    pub(crate) commits: u64,
    /// Navigations within a document.
    pub(crate) same_document: u64,
    /// Navigations that failed.
    pub(crate) failures: u64,
    recent_failures: VecDeque<Failure>,
    recent_loaders: VecDeque<LoaderId>,
    progress: Progress,
    main_world: Option<i64>,
    isolated_world: Option<i64>,
    /// The object of the injected script in the isolated world.
    pub(crate) injected: Option<Arc<str>>,
    /// The navigation under way: its document and address.
    pub(crate) pending: Option<(LoaderId, String)>,
    /// When a script or a link asked for the navigation that has not begun.
    pub(crate) requested: Option<Instant>,
}

/// Counters of a frame at one moment, to see what happened since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) commits: u64,
    pub(crate) same_document: u64,
    pub(crate) failures: u64,
}

impl FrameState {
    fn new(id: FrameId, parent: Option<FrameId>, session: Arc<Session>) -> FrameState {
        FrameState {
            id,
            parent,
            children: Vec::new(),
            url: String::new(),
            name: String::new(),
            loader: None,
            unreachable: None,
            session,
            commits: 0,
            same_document: 0,
            failures: 0,
            recent_failures: VecDeque::new(),
            recent_loaders: VecDeque::new(),
            progress: Progress::default(),
            main_world: None,
            isolated_world: None,
            injected: None,
            pending: None,
            requested: None,
        }
    }

    /// Whether another document is on its way, or this one is not loaded.
    fn is_loading(&self) -> bool {
        let loaded = self.loader.is_none() || (self.progress.loader == self.loader && self.progress.loaded);
        let requested = self.requested.is_some_and(|since| since.elapsed() < REQUEST_BOUND);
        self.pending.is_some() || requested || !loaded
    }

    pub(crate) fn marks(&self) -> Marks {
        Marks { commits: self.commits, same_document: self.same_document, failures: self.failures }
    }

    fn world(&self, world: World) -> Option<i64> {
        match world {
            World::Main => self.main_world,
            World::Isolated => self.isolated_world,
        }
    }

    /// Where scripts of this world run now.
    pub(crate) fn place(&self, world: World) -> Option<Place> {
        let context = self.world(world)?;
        Some(Place { session: Arc::clone(&self.session), context, world })
    }

    /// Whether this document has been committed in the frame, now or a little while ago.
    pub(crate) fn has_committed(&self, loader: &LoaderId) -> bool {
        self.recent_loaders.contains(loader)
    }

    /// The failure of the navigation that would have made this document.
    pub(crate) fn failure_of(&self, loader: &LoaderId) -> Option<&Failure> {
        self.recent_failures.iter().rev().find(|failure| failure.loader.as_ref() == Some(loader))
    }

    pub(crate) fn last_failure(&self) -> Option<&Failure> {
        self.recent_failures.back()
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failures += 1;
        if self.recent_failures.len() == FAILURES_KEPT {
            self.recent_failures.pop_front();
        }
        if self.pending.as_ref().is_some_and(|(loader, _)| failure.loader.as_ref() == Some(loader)) {
            self.pending = None;
        }
        self.recent_failures.push_back(failure);
    }

    fn reached_alone(&self, state: LoadState) -> bool {
        if state == LoadState::Commit {
            return true;
        }
        if self.progress.loader.is_none() || self.progress.loader != self.loader {
            return false;
        }
        match state {
            LoadState::Commit => true,
            LoadState::DomContentLoaded => self.progress.parsed,
            LoadState::Load => self.progress.loaded,
            LoadState::NetworkIdle => self.progress.idle,
        }
    }

    fn forget_worlds(&mut self) {
        self.main_world = None;
        self.isolated_world = None;
        self.injected = None;
    }
}

pub(crate) struct FrameTree {
    frames: HashMap<FrameId, FrameState>,
    main: FrameId,
}

impl FrameTree {
    pub(crate) fn new(main: FrameId, session: Arc<Session>) -> FrameTree {
        let frame = FrameState::new(Arc::clone(&main), None, session);
        FrameTree { frames: HashMap::from([(Arc::clone(&main), frame)]), main }
    }

    pub(crate) fn main(&self) -> &FrameState {
        &self.frames[&self.main]
    }

    pub(crate) fn main_id(&self) -> &FrameId {
        &self.main
    }

    pub(crate) fn get(&self, id: &str) -> Option<&FrameState> {
        self.frames.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: &str) -> Option<&mut FrameState> {
        self.frames.get_mut(id)
    }

    /// All frames, each after its parent, siblings in the order in which they were attached.
    pub(crate) fn in_order(&self) -> Vec<FrameId> {
        let mut ids = vec![Arc::clone(&self.main)];
        let mut at = 0;
        while at < ids.len() {
            if let Some(frame) = self.frames.get(&ids[at]) {
                ids.extend(frame.children.iter().cloned());
            }
            at += 1;
        }
        ids
    }

    /// Whether the frame and, for `NetworkIdle`, all frames in it are loaded that far.
    pub(crate) fn reached(&self, id: &str, state: LoadState) -> bool {
        let Some(frame) = self.frames.get(id) else { return false };
        frame.reached_alone(state)
            && (state != LoadState::NetworkIdle
                || frame.children.iter().all(|child| self.reached(child, state)))
    }

    /// The answer to `Page.getFrameTree`.
    pub(crate) fn apply(&mut self, tree: FrameTreeInfo, session: &Arc<Session>) {
        let id = Arc::clone(&tree.frame.id);
        if let Some(parent) = &tree.frame.parent_id {
            self.attach(&id, parent, session);
        }
        if self.frames.get(&id).is_some_and(|frame| frame.loader.is_none()) {
            self.set_document(tree.frame);
        }
        for child in tree.child_frames {
            self.apply(child, session);
        }
    }

    /// A frame is new in its parent, or has come back into the parent's process. True: it is new.
    pub(crate) fn attach(&mut self, id: &FrameId, parent: &FrameId, session: &Arc<Session>) -> bool {
        if let Some(frame) = self.frames.get_mut(id) {
            if !Arc::ptr_eq(&frame.session, session) {
                frame.session = Arc::clone(session);
                frame.forget_worlds();
                self.detach_children(id);
            }
            return false;
        }
        let Some(above) = self.frames.get_mut(parent) else { return false };
        above.children.push(Arc::clone(id));
        let frame = FrameState::new(Arc::clone(id), Some(Arc::clone(parent)), Arc::clone(session));
        self.frames.insert(Arc::clone(id), frame);
        true
    }

    /// The frame continues in another process.
    pub(crate) fn move_to(&mut self, id: &str, session: &Arc<Session>) -> bool {
        let Some(frame) = self.frames.get_mut(id) else { return false };
        frame.session = Arc::clone(session);
        frame.forget_worlds();
        self.detach_children(id);
        true
    }

    /// The frame is gone, with all in it. The main frame stays, as the page ends with its session.
    pub(crate) fn detach(&mut self, id: &str) -> Vec<FrameId> {
        if *self.main == *id {
            return Vec::new();
        }
        let Some(frame) = self.frames.remove(id) else { return Vec::new() };
        if let Some(parent) = frame.parent.as_ref().and_then(|parent| self.frames.get_mut(parent)) {
            parent.children.retain(|child| **child != *id);
        }
        let mut gone = vec![frame.id];
        for child in frame.children {
            gone.extend(self.detach(&child));
        }
        gone
    }

    pub(crate) fn detach_children(&mut self, id: &str) -> Vec<FrameId> {
        let children = self.frames.get(id).map(|frame| frame.children.clone()).unwrap_or_default();
        children.iter().flat_map(|child| self.detach(child)).collect()
    }

    /// A document is committed. Returns the frames that went with the one before.
    pub(crate) fn commit(&mut self, info: FrameInfo) -> Vec<FrameId> {
        let gone = self.detach_children(&info.id);
        let id = Arc::clone(&info.id);
        self.set_document(info);
        if let Some(frame) = self.frames.get_mut(&id) {
            frame.commits += 1;
            frame.requested = None;
        }
        gone
    }

    fn set_document(&mut self, info: FrameInfo) {
        let Some(frame) = self.frames.get_mut(&info.id) else { return };
        frame.url = format!("{}{}", info.url, info.url_fragment);
        frame.name = info.name;
        frame.unreachable = info.unreachable_url;
        if frame.pending.as_ref().is_some_and(|(loader, _)| *loader == info.loader_id) {
            frame.pending = None;
        }
        if frame.recent_loaders.len() == LOADERS_KEPT {
            frame.recent_loaders.pop_front();
        }
        frame.recent_loaders.push_back(Arc::clone(&info.loader_id));
        frame.loader = Some(info.loader_id);
    }

    pub(crate) fn navigated_within(&mut self, id: &str, url: String) {
        if let Some(frame) = self.frames.get_mut(id) {
            frame.url = url;
            frame.same_document += 1;
            frame.requested = None;
        }
    }

    /// `Page.lifecycleEvent`. True: something that is waited for has changed.
    pub(crate) fn lifecycle(&mut self, id: &str, loader: &LoaderId, name: &str) -> bool {
        let Some(frame) = self.frames.get_mut(id) else { return false };
        if frame.progress.loader.as_ref() != Some(loader) {
            frame.progress = Progress { loader: Some(Arc::clone(loader)), ..Progress::default() };
        }
        let progress = &mut frame.progress;
        match name {
            "DOMContentLoaded" => progress.parsed = true,
            "load" => progress.loaded = true,
            "networkIdle" => progress.idle = true,
            _ => return false,
        }
        true
    }

    /// Whether a frame's document is not loaded yet, or is to be replaced.
    pub(crate) fn is_loading(&self) -> bool {
        self.frames.values().any(FrameState::is_loading)
    }

    /// Loading ended, maybe by `window.stop()`, after which `load` never comes.
    pub(crate) fn stopped(&mut self, id: &str) {
        let Some(frame) = self.frames.get_mut(id) else { return };
        frame.requested = None;
        if frame.loader.is_some() && frame.progress.loader == frame.loader {
            frame.progress.parsed = true;
            frame.progress.loaded = true;
        }
    }

    pub(crate) fn add_world(&mut self, id: &str, session: &Arc<Session>, world: World, context: i64) {
        let Some(frame) = self.frames.get_mut(id) else { return };
        if !Arc::ptr_eq(&frame.session, session) {
            return;
        }
        match world {
            World::Main => frame.main_world = Some(context),
            World::Isolated => {
                frame.isolated_world = Some(context);
                frame.injected = None;
            }
        }
    }

    /// The address of the frame whose page runs in this world of its own.
    pub(crate) fn url_in(&self, session: &Arc<Session>, context: i64) -> Option<&str> {
        let mut frames = self.frames.values().filter(|frame| Arc::ptr_eq(&frame.session, session));
        frames.find(|frame| frame.main_world == Some(context)).map(|frame| frame.url.as_str())
    }

    /// One world of the session is gone, or with `None` all of them.
    pub(crate) fn remove_world(&mut self, session: &Arc<Session>, context: Option<i64>) {
        for frame in self.frames.values_mut().filter(|frame| Arc::ptr_eq(&frame.session, session)) {
            match context {
                None => frame.forget_worlds(),
                Some(context) => {
                    if frame.main_world == Some(context) {
                        frame.main_world = None;
                    }
                    if frame.isolated_world == Some(context) {
                        frame.isolated_world = None;
                        frame.injected = None;
                    }
                }
            }
        }
    }

    /// The frame that an ended session was of, where it has not moved on.
    pub(crate) fn frame_of_session(&self, session: &Arc<Session>) -> Option<FrameId> {
        let root = |frame: &FrameState| {
            let parent = frame.parent.as_ref().and_then(|parent| self.frames.get(parent));
            parent.is_none_or(|parent| !Arc::ptr_eq(&parent.session, session))
        };
        let mut of = self.frames.values().filter(|frame| Arc::ptr_eq(&frame.session, session));
        of.find(|frame| root(frame)).map(|frame| Arc::clone(&frame.id))
    }
}
