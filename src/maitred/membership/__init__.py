"""Who is in the cluster: members, views, heartbeats, votes, joining and leaving. Pure."""
