"""People in browsers: signing in and out, passwords, invitations, an identity provider."""
