"""The Talker's front end: a reply's text, as it comes, to utterances that it can speak well."""
