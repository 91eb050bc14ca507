import numpy as np

from training.judges import flat, share_sure, train_judge


def test_it_names_classes_by_their_numbers_and_is_sure_of_real_data():
    source = np.random.default_rng(0)
    labels = source.integers(0, 2, 200) * 3  # classes 0 and 3: their numbers, not their places
    samples = (source.normal(size=(200, 2, 2)) * 0.2 + labels[:, None, None]).astype(np.float32)
    judge = train_judge(samples, labels)
    assert (judge.predict(flat(samples)) == labels).mean() > 0.98
    assert share_sure(judge, samples) > 0.9
    between = np.linspace(0, 3, 301)[:, None, None] * np.ones((301, 2, 2))
    assert share_sure(judge, between) < 1, "on the way from one class to the other it cannot be sure"
    assert judge.predict_proba(flat(samples)).shape == (200, 2)
    again = train_judge(samples, labels)
    np.testing.assert_array_equal(judge.predict_proba(flat(samples)), again.predict_proba(flat(samples)))
