const ADVICE = {
  rate_limit_exceeded: "The limit fills up again by itself; ask again then.",
  concurrency_limit_exceeded: "Too many requests run at this moment. Ask again when one of them has ended.",
  insufficient_quota: "Waiting does not help before the quota begins anew. An owner or an operator can raise it.",
  context_length_exceeded: "Begin a new chat, or shorten what is asked, or allow fewer tokens in the settings.",
  max_output_tokens_exceeded: "Allow fewer tokens in the settings.",
  model_not_found: "Choose another model: this one was removed, or may no longer be used.",
  tenant_suspended: "An operator of the platform can lift this.",
  invalid_api_key: "Whoever looks after the account's keys can say why. Use another key to go on.",
  unauthorised: "Type in another key to go on: this one was mistyped, revoked, or has expired.",
  playground_key_ended: "Somebody ended it on purpose. If you may, go on with a new one.",
  permission_denied: "Ask an owner of the account for the role.",
  address_not_allowed: "The key is kept to other addresses. Whoever may change the key can change them.",
  overloaded: "Ask again in a moment.",
  worker_lost: "Ask again: another worker answers.",
  closed: "Ask again: the page connects anew.",
  unreachable: "See whether the network is there, and ask again.",
  signed_out: "Load the page again and sign in. What stands here is lost then.",
};

/** What to do about an error. @param {?string} code the error's @returns {string} a sentence, or nothing */
export function advice(code) {
  return ADVICE[code] ?? "";
}
