//! Of the API.
