"""The header of a policy in C: what the exported functions do, and the policy's sizes and limit."""

from ringfence.deploy.export.c_text import comment, number
from ringfence.deploy.export.content import Content

OBS, ACT = "RINGFENCE_OBSERVATIONS", "RINGFENCE_ACTIONS"
SEEN_ELSEWHERE = ("observation_names", "action_names")
ACT_TEXT = """/* The action of one observation, both in the user's units. Returns 0; or 1 if a number of the observation is
 * not finite, or so large that the policy's are not, and then the action is the middle of its range. */
int ringfence_act(const float *observation, float *action);
"""
LIMIT_TEXT = """/* The same for another limit, clipped to the range of limits that the policy was trained for. */
int ringfence_act_limit(const float *observation, float limit, float *action);
"""
SCORES_TEXT = """/* scores[0]: how unlike the log the pair is, suspicious from RINGFENCE_DETECTOR_THRESHOLD on;
 * scores[1]: the expected discounted cost after it. Returns 0; or 1 if a number is not finite, of the scores too, and then
 * they are unchanged: treat it as suspicious. */
int ringfence_scores(const float *observation, const float *action, float *scores);
"""
SCORES_LIMIT_TEXT = """/* The same for an action of ringfence_act_limit, with its limit: the expected cost depends on it. */
int ringfence_scores_limit(const float *observation, const float *action, float limit, float *scores);
"""


def cost_takes_limit(content: Content) -> bool:
    return content.has_cost and "limit" in content.artifact.networks["cost"].inputs


def header(content: Content) -> str:
    artifact = content.artifact
    facts = "".join(f" * {comment(f'{k}: {v}')}\n" for k, v in content.facts.items() if k not in SEEN_ELSEWHERE)
    defines = [("OBSERVATIONS", str(artifact.observation_dim)), ("ACTIONS", str(artifact.action_dim))]
    if artifact.limit is not None or content.limit is not None:
        defines.append(("LIMIT", number(artifact.limit if content.limit is None else content.limit)))
    if artifact.discount is not None:
        defines.append(("DISCOUNT", number(artifact.discount)))
    if content.has_detector and artifact.detector_threshold is not None:
        defines.append(("DETECTOR_THRESHOLD", number(artifact.detector_threshold)))
    lines = [f"#define RINGFENCE_{name} {value}" for name, value in defines]
    declared = [ACT_TEXT]
    if content.limit is not None:
        declared.append(LIMIT_TEXT)
    if content.has_detector and content.has_cost:
        declared += [SCORES_TEXT, *([SCORES_LIMIT_TEXT] if cost_takes_limit(content) else [])]
    return (
        f"/* A policy that ringfence exported: C99, no allocation, thread-safe, needs libm alone.\n *\n{facts} */\n"
        "#ifndef RINGFENCE_POLICY_H\n#define RINGFENCE_POLICY_H\n\n" + "\n".join(lines) + "\n\n"
        '#ifdef __cplusplus\nextern "C" {\n#endif\n\n'
        f"extern const char *const ringfence_observation_names[{OBS}];\n"
        f"extern const char *const ringfence_action_names[{ACT}];\n\n"
        + "\n".join(declared)
        + "\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n"
    )
