"""From a typed record to what people read: text, pages, figures, trackers, a viewer."""
