"""Pictures of a stage graph, in text, in Mermaid and in SVG."""
