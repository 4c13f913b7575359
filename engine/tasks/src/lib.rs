//! Where tasks come from that others published: sets of tasks ([`dataset`]), and source archives of two releases of a
//! library ([`sdist`]). It knows neither sandboxes nor stores: whoever calls writes the image and runs the tests.

pub mod dataset;
pub mod sdist;
